"""The report's file: its numbers are the profile's, it needs nothing beside itself, and no name breaks it."""

import re
from collections import Counter

import html5lib
import pytest

from finegauge.answers.study import study_answer
from finegauge.formats.reading import read
from finegauge.planning.estimate import estimate
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import predict
from finegauge.render import number_format as fmt
from finegauge.render.estimate import estimate_report
from finegauge.render.html import geometry, html_page
from finegauge.render.plots.drawing import new_axes, page_svg, png, svg
from finegauge.render.report import FILE, Bar, BarPart, Note, Plot, Report, Table, Tile, Toned, plain, section
from finegauge.render.run_parts import memory_bar, offer_tables, time_bar
from finegauge.render.terminal import markdown_page
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


def run_report(run: Run) -> Report:
    """Return the report of a file about `run`."""
    answer, study = study_answer(run)
    return estimate_report(answer, FILE, study)


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return html_page(run_report(run))


def test_the_file_is_html_and_needs_nothing_beside_itself(html: str) -> None:
    html5lib.HTMLParser(strict=True).parse(html)
    assert len(html.encode()) < MOST_BYTES
    assert not re.search(r"<(script|link|img|iframe|object|base)\b|\ssrc=|@import|\son\w+=", html)
    assert not re.search(r"""(href|url)\s*[=(]\s*["']?(?!#)[^"'#]""", html)
    assert "default-src 'none'" in html


def test_every_figure_has_title_caption_and_its_numbers(html: str, report: Report) -> None:
    tree = html5lib.parse(html, namespaceHTMLElements=False)
    drawn = tree.findall(".//figure")
    assert [one.get("id") for one in drawn] == [f"figure-{drawing.key}" for drawing in report.plots]
    assert {"memory", "time", "roofline", "throughput", "cost"} <= {one.key for one in report.plots}
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
    profile, drawings = found.profile, {one.key: one for one in report.plots}
    tiles = {tile.name: tile.value for tile in report.tiles}
    needed = fmt.gib_interval(profile.device_memory_bytes.total, profile.source.memory_interval)
    assert needed in plain(report.headline)
    assert tiles["Largest safe micro-batch"] == str(found.capacity.safe_value)
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
    fields = {row[0]: row for table in report.tables for row in table.rows}
    assert fields["lora_rank"] == ("lora_rank", "16", run.origins["lora_rank"])


def test_the_same_question_gives_the_same_bytes(run: Run, report: Report, html: str) -> None:
    assert html_page(report) == html
    assert [png(one) for one in report.plots[:1]] == [png(one) for one in run_report(run).plots[:1]]


def test_bars_add_up(run: Run) -> None:
    profile = predict(run)
    for bar in (geometry(memory_bar(profile)), geometry(time_bar(profile))):
        ends = [part.start_fraction + part.width_fraction for part in bar.pieces]
        starts = [part.start_fraction for part in bar.pieces]
        assert starts[0] == 0
        assert starts[1:] == pytest.approx(ends[:-1])
        assert bar.interval_fractions is not None
        assert bar.interval_fractions[0] < ends[-1] < bar.interval_fractions[1] <= 1
    drawn = geometry(memory_bar(profile))
    assert drawn.limit_fraction is not None
    ratio = profile.device_memory_bytes.total / profile.capacity_bytes
    end = drawn.pieces[-1].start_fraction + drawn.pieces[-1].width_fraction
    assert end / drawn.limit_fraction == pytest.approx(ratio)
    assert gib(profile.capacity_bytes) in memory_bar(profile).limit_text


def hostile() -> Report:
    """Return a report in which every text is out to break the page."""

    def draw() -> object:
        figure, axes = new_axes(2.0)
        axes.plot([0, 1], [0, 1], label=HOSTILE)
        axes.set(title=HOSTILE, xlabel=HOSTILE)
        axes.legend()
        return figure

    table = Table(HOSTILE, (HOSTILE, "b"), ((HOSTILE, HOSTILE),))
    drawing = Plot("key", HOSTILE, HOSTILE, table, draw)  # type: ignore[arg-type]
    parts = (BarPart(HOSTILE, 0.4, HOSTILE, (HOSTILE,)),)
    bar = Bar(HOSTILE, HOSTILE, HOSTILE, parts, 0.5, HOSTILE, parts[0], (0.1, 0.9))
    toned = Note((HOSTILE, Toned(HOSTILE, "bad")), HOSTILE, "risky")
    part = section("key-section", HOSTILE, toned, bar, drawing, table, said=HOSTILE)
    return Report(HOSTILE, HOSTILE, "good", (HOSTILE,), (Tile(*[HOSTILE] * 3),), (part,))


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
    drawing = hostile().plots[0]
    for text in (svg(drawing), page_svg(drawing)):
        assert "<script" not in text
        assert "alert(1)" in text


def test_markdown_says_what_the_page_says(report: Report) -> None:
    markdown = markdown_page(report)
    assert markdown.startswith(f"## Mixtral-8x7B-v0.1 on A40\n\n**{plain(report.headline)[:6]}")
    assert markdown.count("<details>") == markdown.count("</details>") > 0
    for drawing in report.plots:
        assert f"**{drawing.title}.**" in markdown


def test_svg_keeps_text_and_standalone_colours(report: Report) -> None:
    text = svg(report.plots[0])
    assert "weights · model" in text
    assert "var(--" not in text
    assert "<dc:date>" not in text
    assert "var(--fg-ink)" in page_svg(report.plots[0])


def test_the_first_offer_is_the_one_that_the_headline_calls_cheapest(run: Run) -> None:
    asked = quote(run.replace(gpu="a40"))
    first, _ = offer_tables(asked.offers)
    assert asked.cheapest_on_demand is not None
    assert first.rows[0][0] == asked.cheapest_on_demand.provider
    assert any("outlier" in row[3] for row in first.rows[1:])
