"""The seed paper regenerated: our laws against its own, its tables recomputed, its errors proved.

The expected numbers are the paper's or those of the reference collection, never copies of our output.
"""

import pytest

from finegauge.reproduction import characterisation, sweeps, tables, xia2024
from finegauge.reproduction.published import Finding, Item, Setting, claim, figures
from finegauge.reproduction.xia2024 import FINDINGS, ITEMS, reproduce
from tests.golden.tables import rows
from tests.golden.xia2024_figures import SHIPPED, as_csv
from tests.shared import needs_shared

pytestmark = pytest.mark.extras

ISSUE_ITEMS = {
    *(f"table-{n}" for n in range(1, 5)),
    *(f"fig-{n}" for n in (2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15)),
    "lengths",
    "openorca",
}


def column(table: Item | Finding, n: int) -> list[object]:
    """Return one column."""
    return [row[n] for row in table.rows]


@needs_shared
def test_the_shipped_figures_are_those_of_the_reference() -> None:
    assert SHIPPED.read_text("utf-8") == as_csv(), "run python -m tests.golden.xia2024_figures"


def test_every_shipped_figure_has_a_source_and_a_date() -> None:
    everything = figures(
        *{"table1", "table2", "table3", "table4", "rmse", "claim", "lengths"}, *_figure_items()
    )
    assert len(everything) > 700
    assert all(figure.source and figure.date.startswith("2024") for figure in everything)


def _figure_items() -> set[str]:
    return {f"fig{n}" for n in range(3, 16)}


def test_every_item_and_every_inconsistency_is_there() -> None:
    whole = reproduce()
    assert {item.key for item in whole.items} >= ISSUE_ITEMS
    assert [finding.number for finding in whole.findings] == list(range(1, 16))
    assert all(item.rows and len(row) == len(item.columns) for item in whole.items for row in item.rows)
    assert all(len(row) == len(f.headings) for f in whole.findings for row in f.rows)
    assert len(whole.items) == len(ITEMS)
    assert len(whole.findings) == len(FINDINGS)


def test_the_affine_law_beats_equation_2_on_all_seven_series() -> None:
    found = sweeps.sweeps()
    assert len(found) == 7
    print(f"\n{'series':<26}{'eq. 2':>8}{'printed':>9}{'affine':>8}{'ratio':>7}")
    for s in found:
        rmse = [law.scores.rmse for law in (s.artifact, s.printed, s.affine)]
        print(f"{s.name:<26}{rmse[0]:>8.3f}{rmse[1]:>9.3f}{rmse[2]:>8.3f}{s.rmse_ratio:>6.1f}x")
    assert all(s.affine.scores.rmse < s.artifact.scores.rmse for s in found)
    assert all(s.affine.scores.rmse < s.printed.scores.rmse for s in found)
    assert sum(s.rmse_ratio >= 2 for s in found) >= 5


def test_the_comparison_states_the_constants_of_each() -> None:
    for one in sweeps.sweeps():
        fitted = [len(law.constants) - len(law.held) for law in (one.affine, one.artifact, one.printed)]
        assert fitted == [3, 2, 2]
    said = " ".join(sweeps.laws_item().notes)
    assert "affine 3" in said
    assert "Equation 2 has 3" in said
    assert "of which data can tell 2" in said


@needs_shared
def test_refits_equal_those_of_the_reference() -> None:
    for row, s in zip(rows("xia2024/refit.csv"), sweeps.sweeps(), strict=True):
        assert s.artifact.constants["C2"] == pytest.approx(float(row["C2"]), rel=1e-4)
        assert s.artifact.constants["C4"] == pytest.approx(float(row["C4"]), rel=1e-4)
        assert s.artifact.scores.rmse == pytest.approx(float(row["rmse_fit"]), rel=1e-4)
        assert s.printed.scores.rmse == pytest.approx(float(row["rmse_paper_eq2"]), rel=1e-4)
        assert s.plotted_rmse_queries_per_s == pytest.approx(float(row["rmse_plotted"]), rel=1e-4)
        unbugged = float(row["rmse_plotted_bugfixed"])
        assert s.unbugged_rmse_queries_per_s == pytest.approx(unbugged, rel=1e-4)


def test_the_plotted_rmse_is_the_one_in_the_figures() -> None:
    for s in sweeps.sweeps():
        assert s.plotted_rmse_queries_per_s == pytest.approx(s.printed_rmse_queries_per_s, abs=0.005)


def test_table_4_is_15000_queries() -> None:
    for cost, hidden, math in zip(
        tables.costs(), (32.737, 25.396, 17.862), (30.382, 23.569, 16.577), strict=True
    ):
        assert cost.usd(15_000) == pytest.approx(hidden, abs=1e-3)
        assert cost.usd(15_000) == pytest.approx(cost.printed, abs=0.05)
        assert cost.usd(13_921) == pytest.approx(math, abs=1e-3)
        assert abs(cost.usd(13_921) - cost.printed) > 1
    assert [cost.own_chain()[0] for cost in tables.costs()] == [4, 10, 10]
    chain = [cost.usd(15_000, cost.own_chain()[1]) for cost in tables.costs()]
    assert chain == pytest.approx([33.4, 30.1, 23.5], abs=0.06)


def test_openorca_implies_2_9_million_queries() -> None:
    implied = tables.openorca().rows[1][1]
    assert implied == pytest.approx(2.9e6, rel=0.001)


def test_equation_1_as_printed_and_as_coded() -> None:
    finding = xia2024.equation_1()
    cases = {str(row[0]): row[1:] for row in finding.rows}
    assert cases["Mixtral-8x7B dense CS A40"] == (2, 25, 3, 2)
    assert cases["Mixtral-8x7B sparse CS A40"] == (8, 88, 13, 8)
    assert cases["Mixtral-8x7B sparse CS A100-80GB"] == (27, 204, 31, 20)
    assert cases["Mixtral-8x7B sparse MATH A100-80GB"] == (17, 92, 15, 10)
    assert "give 42 and 53" in finding.statement
    projected = [tables.eq1("Mixtral-8x7B", "sparse", gb, 512, artifact=True) for gb in (100.0, 120.0)]
    assert [round(value) for value in projected] == [
        claim("max batch at 100 GB"),
        claim("max batch at 120 GB"),
    ]


def test_utilisation_that_does_not_follow_from_its_kernels() -> None:
    at = Setting
    for batch, published, derived in ((1, 33.6, 53.2), (30, 66.5, 59.8)):
        found = characterisation.weighted("fig10", at("BlackMamba-2.8B", "dense", batch))
        assert found == pytest.approx((published, derived), abs=0.05)
    apart = [abs(a - b) for s in at.all("fig10") for a, b in [characterisation.weighted("fig10", s)]]
    assert sum(difference > 1 for difference in apart) == 2


def test_shares_variances_and_labels() -> None:
    last = xia2024.moe_share().rows[-1]
    assert last[1:3] == pytest.approx((84.5, 50.5), abs=0.05)
    kinds = column(xia2024.variances(), 4)
    assert (kinds.count("sample"), kinds.count("population")) == (5, 3)
    assert [row[1:] for row in xia2024.table_3_labels().rows] == [
        (3, 4), (2, 3), (8, 10), (3, 4), (2, 3), (2, 3), (8, 10),
    ]  # fmt: skip


def test_claims_of_the_text_that_hold() -> None:
    for row in xia2024.stages_against_lengths().rows:
        text, data = row[1], row[2]
        assert isinstance(text, float)
        assert isinstance(data, float)
        if "128 tokens" not in str(row[0]) and "constant" not in str(row[0]):
            assert data == pytest.approx(text, rel=0.03)


def test_expert_kernels_within_budget() -> None:
    errors = sorted(abs(float(str(row[4])) / float(str(row[3])) - 1) for row in characterisation.fig_6().rows)
    assert len(errors) == 40
    assert errors[len(errors) // 2] <= 0.12
