"""The report's file: its numbers are the profile's, it needs nothing beside itself, and no name breaks it."""

import re
from collections import Counter

import html5lib
import pytest

from finegauge.formats.reading import read
from finegauge.planning.estimate import estimate
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import predict
from finegauge.render import number_format as fmt
from finegauge.render.bars import Bar, BarPart, Table, memory_bar, stage_bar
from finegauge.render.html import html_page, profile_page
from finegauge.render.markdown import markdown_page
from finegauge.render.plots.drawing import Drawing, new_axes, page_svg, png, svg
from finegauge.render.report import Fact, Report, section
from finegauge.render.run_report import offer_table, run_report
from finegauge.run.run import Run
from finegauge.units import GIB, gib
from tests.e2e.commands import EXAMPLES

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)> $\\bad_{$ | `x` \x3c!-- & \u202e"
MOST_BYTES = 6 * 2**20


@pytest.fixture(scope="module")
def run() -> Run:
    return read(str(EXAMPLES / "mixtral_qlora_math.yaml"), ())


@pytest.fixture(scope="module")
def report(run: Run) -> Report:
    return run_report(run)


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return profile_page(predict(run))


def test_the_file_is_html_and_needs_nothing_beside_itself(html: str) -> None:
    html5lib.HTMLParser(strict=True).parse(html)
    assert len(html.encode()) < MOST_BYTES
    assert not re.search(r"<(script|link|img|iframe|object|base)\b|\ssrc=|@import|\son\w+=", html)
    assert not re.search(r"""(href|url)\s*[=(]\s*["']?(?!#)[^"'#]""", html)
    assert "default-src 'none'" in html


def test_every_figure_has_title_caption_and_its_numbers(html: str, report: Report) -> None:
    tree = html5lib.parse(html, namespaceHTMLElements=False)
    drawn = tree.findall(".//figure")
    assert [one.get("id") for one in drawn] == [f"figure-{drawing.key}" for drawing in report.drawings]
    assert {"memory", "time", "roofline", "throughput", "cost"} <= {one.key for one in report.drawings}
    for one in drawn:
        title, caption = one.find("h3"), one.find("figcaption")
        assert title is not None
        assert title.text
        assert caption is not None
        assert str(caption.text).endswith(".")
        assert one.find("details//table/tbody/tr") is not None
        picture = one.find("{*}svg")
        assert picture is not None
        assert picture.get("role") == "img"


def test_ids_are_unique_and_what_is_referred_to_is_there(html: str) -> None:
    ids = Counter(re.findall(r'\sid="([^"]*)"', html))
    assert max(ids.values()) == 1
    named = {one or other for one, other in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', html)}
    assert len(named) > 10
    assert named <= ids.keys()


def test_the_numbers_are_the_profiles(run: Run, report: Report) -> None:
    found = estimate(run)
    profile, drawings = found.profile, {one.key: one for one in report.drawings}
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["Memory"] == fmt.gib_interval(
        profile.device_memory_bytes.total, profile.source.memory_interval
    )
    assert facts["Largest micro-batch"] == str(found.capacity.value)
    memory = {row[0]: row[1] for row in drawings["memory"].table.rows}
    for path, amount in profile.device_memory_bytes.parts.items():
        assert memory[" · ".join(path)] == f"{amount / GIB:.3f}"
    assert memory["all that has to fit"] == f"{profile.device_memory_bytes.total / GIB:.3f}"
    assert memory["usable"] == f"{profile.capacity_bytes / GIB:.3f}"
    seconds = {row[0]: row[1] for row in drawings["time"].table.rows}
    assert len(seconds) == len(profile.step_time_s.parts) + 1
    for path, amount in profile.step_time_s.parts.items():
        assert seconds[" · ".join(path)] == fmt.duration(amount)
    throughput = {row[0]: row[1] for row in drawings["throughput"].table.rows}
    assert throughput["1"] == fmt.digits(profile.samples_per_s)
    assert drawings["throughput"].table.rows[-1][-1] == "no"  # one beyond the largest that fits
    fields = {row[0]: row for table in report.sections[-2].tables for row in table.rows}
    assert fields["lora_rank"] == ("lora_rank", "16", run.origins["lora_rank"])


def test_the_same_question_gives_the_same_bytes(run: Run, report: Report, html: str) -> None:
    assert html_page(report) == html
    assert [png(one) for one in report.drawings[:1]] == [png(one) for one in run_report(run).drawings[:1]]


def test_bars_add_up(run: Run) -> None:
    profile = predict(run)
    for bar in (memory_bar(profile), stage_bar(profile)):
        ends = [part.start_fraction + part.width_fraction for part in bar.parts]
        starts = [part.start_fraction for part in bar.parts]
        assert starts[0] == 0
        assert starts[1:] == pytest.approx(ends[:-1])
        assert bar.interval_fractions is not None
        assert bar.interval_fractions[0] < ends[-1] < bar.interval_fractions[1] <= 1
    bar = memory_bar(profile)
    assert bar.limit_fraction is not None
    ratio = profile.device_memory_bytes.total / profile.capacity_bytes
    assert ends_at(bar) / bar.limit_fraction == pytest.approx(ratio)
    assert gib(profile.capacity_bytes) in str(bar.limit)


def ends_at(bar: Bar) -> float:
    """Return where the last part of a bar ends."""
    return bar.parts[-1].start_fraction + bar.parts[-1].width_fraction


def hostile() -> Report:
    """Return a report in which every text is out to break the page."""

    def draw() -> object:
        figure, axes = new_axes(2.0)
        axes.plot([0, 1], [0, 1], label=HOSTILE)
        axes.set(title=HOSTILE, xlabel=HOSTILE)
        axes.legend()
        return figure

    table = Table(HOSTILE, (HOSTILE, "b"), ((HOSTILE, HOSTILE),))
    drawing = Drawing("key", HOSTILE, HOSTILE, table, draw)  # type: ignore[arg-type]
    part = section("key-section", HOSTILE, texts=(HOSTILE,), drawings=(drawing,), tables=(table,))
    bar = Bar(HOSTILE, memory_bar_parts(), 0.5, HOSTILE, (0.1, 0.9))
    return Report(HOSTILE, HOSTILE, "good", (HOSTILE,), (Fact(*[HOSTILE] * 3),), ((HOSTILE, bar),), (part,))


def memory_bar_parts() -> tuple[BarPart, ...]:
    """Return one part of a bar with a hostile name."""
    return (BarPart(HOSTILE, HOSTILE, 0.0, 0.4, 1),)


def test_hostile_names_stay_text() -> None:
    html = html_page(hostile())
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)
    assert not [one for one in tree.iter() if one.tag in ("script", "img")]
    assert not [name for one in tree.iter() for name in one.attrib if str(name).startswith("on")]
    title = tree.find(".//h1")
    assert title is not None
    assert title.text == HOSTILE


def test_hostile_names_stay_text_in_markdown_and_pictures() -> None:
    markdown = markdown_page(hostile())
    assert "<script" not in markdown
    assert "<img" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows if "\\|" in row} == {3, 4}
    drawing = hostile().drawings[0]
    for text in (svg(drawing), page_svg(drawing)):
        assert "<script" not in text
        assert "alert(1)" in text


def test_markdown_says_what_the_page_says(report: Report) -> None:
    markdown = markdown_page(report)
    assert markdown.startswith(f"## Mixtral-8x7B-v0.1 on A40\n\n**{report.verdict[:6]}")
    assert markdown.count("<details>") == markdown.count("</details>") > 0
    for drawing in report.drawings:
        assert f"**{drawing.title}.**" in markdown


def test_svg_keeps_text_and_standalone_colours(report: Report) -> None:
    text = svg(report.drawings[0])
    assert "weights · model" in text
    assert "var(--" not in text
    assert "<dc:date>" not in text
    assert "var(--fg-ink)" in page_svg(report.drawings[0])


def test_the_first_offer_is_the_one_that_the_headline_calls_cheapest(run: Run) -> None:
    asked = quote(run.replace(gpu="a40"))
    table, cheapest = offer_table(asked), asked.cheapest_on_demand
    assert table is not None
    assert cheapest is not None
    assert table.rows[0][0] == cheapest.offer.provider
    assert any("outlier" in row[3] for row in table.rows[1:])
