"""The first minute on the page, and what is kept of it: by mouse, by keyboard, on a desk and on a phone."""

import re
import struct
import zipfile
from base64 import b64encode
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from finegauge.web.choices import jobs, model_choices
from tests.browser.conftest import Visit
from tests.browser.test_page import DARK, LLAMAFACTORY, PHONE, picture, stated

DESK = {"viewport": {"width": 1280, "height": 800}}
everywhere = pytest.mark.parametrize("visit", [DESK, PHONE], indirect=True, ids=["1280", "390"])


def holding(text: str) -> re.Pattern[str]:
    """Return a pattern of what holds `text`."""
    return re.compile(re.escape(text))


def width_of(page: Page) -> int:
    """Return how wide the window is."""
    assert page.viewport_size is not None
    return page.viewport_size["width"]


def lift(page: Page) -> None:
    """Show the inputs, which are a sheet on a phone."""
    if page.locator("#sheet").is_visible():
        page.click("#sheet")
    expect(page.locator("#f-model")).to_be_visible()


def lower(page: Page) -> None:
    """Show the answer again."""
    if page.locator("body.sheet-up").count():
        page.click("#sheet")
        expect(page.locator("#sheet")).to_have_text("Change")


@everywhere
def test_a_job_is_one_click_away(visit: Visit) -> None:
    page = visit.open()
    lift(page)
    assert page.locator(".jobs a").count() == len(jobs()) == 6
    picture(page, f"b-jobs-{width_of(page)}")
    page.click(".jobs a >> nth=0")
    expect(page.locator("#f-document")).to_have_value(holding("base_model: Qwen/Qwen3-8B"))
    expect(page.locator("#o-phase")).to_have_text("default of Axolotl")


@everywhere
def test_a_model_is_picked_by_mouse_and_by_keyboard(visit: Visit) -> None:
    page = visit.open()
    lift(page)
    field, options = page.locator("#f-model"), page.locator("#model-list [role=option]")
    field.click()
    page.keyboard.type("qwen3 8")
    expect(options.first).to_contain_text("Qwen/Qwen3-8B")
    expect(options.first).to_contain_text("8.19 B parameters · 36 layers · context 40,960 · dense")
    expect(field).to_have_attribute("aria-expanded", "true")
    picture(page, f"b-model-{width_of(page)}")
    assert Axe().run(page).violations_count == 0
    options.first.click()
    stated(page, "model", "you")
    expect(field).to_have_value("Qwen/Qwen3-8B")
    expect(field).to_have_attribute("aria-expanded", "false")

    field.fill("mixtral")
    expect(options.first).to_contain_text("Mixtral")
    expect(options.first).to_contain_text("MoE, 8 experts, 2 active")
    expect(page.locator("#e-model")).to_be_empty()  # half a name is no mistake
    page.keyboard.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", "model-0")
    named = options.first.locator("span").inner_text()
    page.keyboard.press("Enter")
    expect(field).to_have_value(named)
    expect(page.locator("#told")).to_have_attribute("data-title", holding(named.rpartition("/")[2]))

    field.fill("llama-3.1-8bb")  # like nothing that is listed
    expect(page.locator("#e-model")).to_contain_text("Did you mean")
    field.fill("llama-3.1")
    expect(options.first).to_be_visible()
    page.keyboard.press("Escape")
    expect(options.first).to_be_hidden()


def test_every_model_of_the_catalogue_can_be_picked(visit: Visit) -> None:
    page = visit.open()
    got = page.request.get(f"{visit.url}/choices").json()
    assert [row[0] for row in got] == [one.name for one in model_choices()]


@everywhere
def test_a_gpu_and_its_count(visit: Visit) -> None:
    page = visit.open()
    lift(page)
    groups = page.locator("#f-gpu optgroup").evaluate_all("all => all.map((one) => one.label)")
    assert groups.index("Rented out most") < groups.index("NVIDIA Hopper") < groups.index("AMD CDNA3")
    page.focus("#f-gpu")
    page.keyboard.type("A40")  # by its first letters, as in any list
    stated(page, "gpu", "you")
    expect(page.locator("#f-gpu")).to_have_value("A40")
    page.focus("#f-num_gpus")
    page.keyboard.press("ArrowUp")
    stated(page, "num_gpus", "you")
    lower(page)
    expect(page.locator("#told")).to_have_attribute("data-title", holding("on 2 x A40"))


@everywhere
def test_two_pins_are_compared_field_by_field(visit: Visit) -> None:
    page = visit.open()
    page.click("#pin")
    lift(page)
    page.select_option("#f-gpu", "H100-SXM5-80GB")
    stated(page, "gpu", "you")
    lower(page)
    page.focus("#pin")
    page.keyboard.press("Enter")
    expect(page.locator("#tab-compare")).to_have_text("Compare (2)")
    page.focus("#tab-plan")
    page.keyboard.press("ArrowRight")
    table = page.locator("#compared table")
    expect(table).to_contain_text("What differs")
    row = table.locator("tr", has=page.locator("th", has_text="GPU"), has_text="L40S").last
    expect(row.locator("td")).to_have_text(["L40S", "H100-SXM5-80GB"])
    expect(row.locator("td.differs")).to_have_count(1)
    for figure in ("Verdict", "Memory of each GPU", "One step", "Whole run", "On demand, cheapest"):
        expect(table.locator("tr", has_text=figure).locator("td")).to_have_count(2)
    assert Axe().run(page).violations_count == 0
    picture(page, f"b-compare-{width_of(page)}", whole=True)

    name = page.get_by_label("Name of pin 1")
    name.fill("the cheap one <b>")
    name.press("Enter")
    expect(table).to_contain_text("the cheap one <b>")
    page.reload()
    page.wait_for_selector("html.ready", state="attached")
    expect(page.locator("#tab-compare")).to_have_text("Compare (2)")
    page.click("#tab-compare")
    page.click("#pins [aria-label^='Remove'] >> nth=1")
    expect(page.locator("#tab-compare")).to_have_text("Compare (1)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width_of(page)


@everywhere
def test_what_was_asked_is_remembered(visit: Visit) -> None:
    page = visit.open()
    lift(page)
    page.fill("#f-micro_batch_size", "2")
    stated(page, "micro_batch_size", "you")
    link = page.input_value("#link")
    lower(page)
    visit.open()  # away from the first question, which is kept
    page.click("#tab-compare")
    asked = page.locator("#history a")
    expect(asked.first).to_contain_text("Llama-3.1-8B on L40S")
    asked.first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("html.ready", state="attached")
    assert page.url == link
    page.click("#tab-compare")
    page.click("#forget")
    expect(asked).to_have_count(0)


def test_pins_and_history_are_bounded_and_survive_nonsense(visit: Visit) -> None:
    page = visit.open()
    page.evaluate(
        """() => { localStorage["finegauge.pins"] = "{broken";
        localStorage["finegauge.asked"] = JSON.stringify([{link: "javascript:alert(1)"}, 7,
          ...Array.from({length: 40}, (_, one) => ({link: `/?s=${one}`, title: "", said: "", at: 0}))]); }"""
    )
    page.reload()
    page.wait_for_selector("html.ready", state="attached")
    assert page.locator("#history a[href^=javascript]").count() == 0
    page.fill("#f-micro_batch_size", "3")
    stated(page, "micro_batch_size", "you")
    expect(page.locator("#history li")).to_have_count(30)  # once the edit has stood for a while
    for batch in range(4, 11):
        page.fill("#f-micro_batch_size", str(batch))
        expect(page.locator("#told")).to_have_attribute("data-title", holding(f"micro-batch {batch}"))
        page.click("#pin")
    expect(page.locator("#pin-note")).to_have_text("6 runs are pinned; remove one first.")


@everywhere
def test_files_of_a_framework(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    lift(page)
    page.fill("#f-document", LLAMAFACTORY)
    stated(page, "lora_rank", "pasted text")
    expect(page.locator("#o-optimizer")).to_have_text("default of LLaMA-Factory")  # never cut
    cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id)"
    assert page.locator("#inputs .origin:visible").evaluate_all(cut) == []
    lower(page)
    page.click("#tab-keep")
    page.focus("#f-export_framework")
    page.keyboard.type("axo")
    expect(page.locator("#files")).to_contain_text("base_model: meta-llama/Meta-Llama-3-8B-Instruct")
    expect(page.locator("#files")).to_contain_text("axolotl train")
    picture(page, f"b-files-{width_of(page)}")
    assert Axe().run(page).violations_count == 0
    with page.expect_download() as kept:
        page.click("[formaction='/download/files.zip']")
    kept.value.save_as(tmp_path / "files.zip")
    assert sorted(zipfile.ZipFile(tmp_path / "files.zip").namelist()) == ["README.txt", "axolotl.yaml"]


@pytest.mark.parametrize("visit", [DESK, DARK], indirect=True, ids=["light", "dark"])
def test_a_picture_of_what_is_shown(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    page.click("#pin")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for tab, filled in (("estimate", "#verdict"), ("charts", "#scaling svg"), ("compare", "#compared table")):
        page.click(f"#tab-{tab}")
        expect(page.locator(filled).first).to_be_visible()
        with page.expect_download() as kept:
            page.click("#picture")
        assert kept.value.suggested_filename == f"finegauge-{tab}.png"
        kept.value.save_as(tmp_path / "picture.png")
        data = (tmp_path / "picture.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, _ = struct.unpack(">II", data[16:24])
        box = page.locator(f"#panel-{tab}").bounding_box()
        assert box is not None
        assert width >= 2 * box["width"]
        found = page.evaluate(_COLOURS, b64encode(data).decode())
        assert found["distinct"] > 20, tab  # words and bars below the title, not an empty sheet
        assert (max(found["corner"]) < 50) is dark


_COLOURS = """async (encoded) => {
  const bytes = Uint8Array.from(atob(encoded), (one) => one.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 150, image.width, Math.min(image.height - 150, 600));
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  return { distinct: seen.size, corner: [data[0], data[1], data[2]] };
}"""


@pytest.mark.parametrize("visit", [PHONE], indirect=True)
def test_a_phone_shows_the_answer_first_and_tables_as_cards(visit: Visit) -> None:
    page = visit.open()
    box = page.locator("#tile-usd").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 420  # verdict and three figures in the upper half
    expect(page.locator("#f-model")).to_be_hidden()
    cell = page.locator("#answer .fg-table td").first
    assert cell.evaluate("one => getComputedStyle(one, '::before').content") not in ("none", "normal")
    page.click("#sheet")
    assert page.evaluate("document.activeElement.id") == "inputs"
    expect(page.locator("#f-model")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#f-model")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "sheet"


@pytest.mark.parametrize(
    "visit",
    [
        {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        for width, height in ((390, 844), (768, 1024), (1280, 800), (1920, 1080))
        for scheme in ("light", "dark")
    ],
    indirect=True,
    ids=lambda one: f"{one['viewport']['width']}-{one['color_scheme']}",
)
def test_no_width_scrolls_sideways_and_axe_is_content(visit: Visit) -> None:
    page = visit.open("/?example=qwen3_axolotl")
    width = page.evaluate("innerWidth")
    scheme = "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
    picture(page, f"c-{width}-{scheme}")
    page.click("#pin")
    for tab in ("estimate", "compare", "keep"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_without_a_script_a_job_is_answered_and_written(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    page.click(".jobs a >> nth=1")
    expect(page.locator("#answer .verdict")).to_contain_text("on RTX 4090")
    page.select_option("#f-export_framework", "trl")
    with page.expect_download() as kept:
        page.click("[formaction='/download/files.zip']")
    assert kept.value.suggested_filename == "trl.zip"
