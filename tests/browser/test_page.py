"""The page in Chromium: what people do with it, by mouse and by keyboard, on a desk and on a phone."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from finegauge.web.choices import controls
from finegauge.web.form import State, token_of
from tests.browser.conftest import SCREENSHOTS, Visit

LLAMAFACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: math_14k
template: llama3
cutoff_len: 2048
output_dir: saves/llama3-8b/lora/sft
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
bf16: true
"""
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DARK = {"color_scheme": "dark"}


def picture(page: Page, name: str, *, whole: bool = False) -> None:
    """Keep a screenshot for people to look at."""
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)


def tile(page: Page, key: str) -> str:
    """Return one figure of the answer."""
    return page.inner_text(f"#tile-{key}")


def stated(page: Page, field: str, by: str) -> None:
    """Wait until the page says who stated a field: the answer to the edit has come."""
    expect(page.locator(f"#o-{field}")).to_have_text(by)


def test_paste_change_plan_and_keep(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    expect(page.locator("#verdict")).to_have_text("Fits")  # the example answers at once
    picture(page, "1-example")

    page.fill("#f-document", LLAMAFACTORY)
    stated(page, "lora_rank", "pasted text")
    expect(page.locator("#f-micro_batch_size")).to_have_attribute("placeholder", "2")
    expect(page.locator("#o-optimizer")).to_have_text("default of LLaMA-Factory")
    picture(page, "2-pasted")

    page.select_option("#f-gpu", "L40S")
    stated(page, "gpu", "you")
    on_l40s = {key: tile(page, key) for key in ("max-batch", "usd", "time")}
    page.select_option("#f-gpu", "H100-SXM5-80GB")
    expect(page.locator("#tile-usd")).not_to_have_text(on_l40s["usd"])
    on_h100 = {key: tile(page, key) for key in ("max-batch", "usd", "time")}
    assert int(on_h100["max-batch"]) > int(on_l40s["max-batch"])

    page.select_option("#f-activation_checkpointing", "none")
    expect(page.locator("#tile-max-batch")).not_to_have_text(on_h100["max-batch"])
    assert int(tile(page, "max-batch")) < int(on_h100["max-batch"])
    assert tile(page, "usd") != on_h100["usd"]  # nothing is computed twice

    page.click("#tab-plan")
    page.fill("#f-plan_within_h", "24")
    page.select_option("#f-plan_framework", "llamafactory")
    page.click("#search")
    expect(page.locator("#planned .verdict")).to_contain_text("Cheapest within 24", timeout=30_000)
    picture(page, "3-plan", whole=True)
    with page.expect_download(timeout=60_000) as kept:
        page.click("#planned [formaction='/download/plan.zip']")
    kept.value.save_as(tmp_path / "plan.zip")
    names = zipfile.ZipFile(tmp_path / "plan.zip").namelist()
    assert any(name.endswith(".yaml") for name in names)

    page.click("#tab-keep")
    picture(page, "4-keep")
    for button, start in (("/report", "<!doctype html>"), ("/download/run.yaml", "model:"),
                          ("/download/profile.json", "{")):  # fmt: skip
        with page.expect_download(timeout=60_000) as kept:
            page.click(f"#panel-keep [formaction='{button}']")
        kept.value.save_as(tmp_path / "kept")
        assert (tmp_path / "kept").read_text("utf-8").lower().startswith(start)


def test_a_switch_is_applied_by_a_click(visit: Visit) -> None:
    page = visit.open()
    before = tile(page, "time")
    page.click("#tab-whatif")
    expect(page.locator("#whatif .changes")).to_be_visible()
    picture(page, "5-whatif", whole=True)
    page.click("[aria-label='Apply packing']")
    stated(page, "packing", "you")
    expect(page.locator("#f-packing")).to_have_value("true")
    page.click("#tab-estimate")
    expect(page.locator("#tile-time")).not_to_have_text(before)


def test_a_plan_is_applied_by_a_click(visit: Visit) -> None:
    page = visit.open()
    page.click("#tab-plan")
    page.click("#search")
    page.click("#planned .apply", timeout=30_000)
    stated(page, "gpu", "you")
    page.click("#tab-estimate")
    expect(page.locator("#verdict")).to_have_text("Fits")


def test_a_wrong_value_is_told_beside_its_field(visit: Visit) -> None:
    page = visit.open()
    page.fill("#f-micro_batch_size", "0")
    error = page.locator("#e-micro_batch_size")
    expect(error).to_contain_text("micro_batch_size=0 is too small")
    expect(page.locator("#f-micro_batch_size")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#verdict")).to_be_visible()  # the last answer stays, paler
    picture(page, "6-wrong")
    page.fill("#f-micro_batch_size", "2")
    expect(error).to_be_empty()
    expect(page.locator("#problem")).to_be_hidden()

    page.fill("#f-model", "llama-3.1-8bb")
    expect(page.locator("#e-model")).to_contain_text("Did you mean")
    page.fill("#f-model", "")
    page.fill("#f-document", "{not: [yaml")
    expect(page.locator("#e-document")).to_contain_text("not valid YAML")

    page.click("#tab-plan")
    page.fill("#f-plan_budget_usd", "cheap")
    page.click("#search")
    expect(page.locator("#e-plan_budget_usd")).to_contain_text("not a finite number")


def test_the_link_restores_all_inputs(visit: Visit) -> None:
    page = visit.open()
    page.fill("#f-document", LLAMAFACTORY)
    page.select_option("#f-gpu", "A40")
    page.fill("#f-seq_len", "512")
    stated(page, "seq_len", "you")
    answered = page.inner_text("#answer")
    link = page.input_value("#link")
    assert page.url == link
    again = visit.open(link.removeprefix(visit.url))
    assert again.input_value("#f-document") == LLAMAFACTORY
    assert again.input_value("#f-gpu") == "A40"
    assert again.inner_text("#answer") == answered
    visit.page.goto(f"{visit.url}/?s=broken")
    expect(visit.page.locator("#problem")).to_contain_text("The link is damaged")
    visit.wrong.clear()  # the browser logs the status 400


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"{{7*7}}</textarea>"


def test_hostile_input_is_shown_as_text(visit: Visit) -> None:
    page = visit.open()
    page.on("dialog", lambda dialog: pytest.fail(f"ran: {dialog.message}"))
    page.fill("#f-model", HOSTILE)
    expect(page.locator("#e-model")).to_contain_text("<img src=x onerror=alert(1)>")
    page.fill("#f-model", "")
    page.fill("#f-document", f"model: llama-3-8b\nmethod: lora\n{json.dumps(HOSTILE)}: 1\n")
    expect(page.locator("#e-document")).to_contain_text("unknown key")
    page.reload()
    assert page.locator("img[src=x], #answer script").count() == 0
    assert HOSTILE[:20] in page.input_value("#f-document")
    picture(page, "7-hostile")


def test_hostile_input_is_text_in_what_comes_after_the_first_frame_too(visit: Visit) -> None:
    hostile = f"</noscript>{HOSTILE}"
    link = f"/?s={token_of(State(overrides={'provider': hostile, 'lora_targets': hostile}))}"
    page = visit.open(link)
    assert page.input_value("#f-provider") == page.input_value("#f-lora_targets") == hostile
    assert page.locator("img[src=x], noscript, #inputs script").count() == 0


def test_every_field_is_there_after_the_first_frame(visit: Visit) -> None:
    page = visit.open()
    assert page.locator("#inputs [name]").count() == 1 + len(list(controls()))  # and the pasted text


@pytest.mark.parametrize("visit", [PHONE], indirect=True)
def test_a_phone_shows_all_of_it_without_scrolling_sideways(visit: Visit) -> None:
    page = visit.open()
    picture(page, "8-phone", whole=True)
    expect(page.locator("#glance")).to_contain_text("Fits")
    for tab in ("whatif", "plan", "keep"):
        page.click(f"#tab-{tab}")
        if tab == "whatif":
            expect(page.locator("#whatif .changes")).to_be_visible()
        if tab == "plan":
            page.click("#search")
            expect(page.locator("#planned .verdict")).to_be_visible(timeout=30_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
        picture(page, f"8-phone-{tab}", whole=True)


def test_the_keyboard_alone_does_it(visit: Visit) -> None:
    page = visit.open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#f-micro_batch_size")
    page.keyboard.press("ArrowUp")
    stated(page, "micro_batch_size", "you")
    assert page.input_value("#f-micro_batch_size") == "5"
    assert page.evaluate("document.activeElement.id") == "f-micro_batch_size"  # the focus stays
    page.keyboard.type("0")
    expect(page.locator("#verdict")).to_have_text("Will not fit")
    page.keyboard.press("Enter")  # sends nothing away
    assert page.input_value("#f-micro_batch_size") == "50"
    expect(page.locator("#said")).to_contain_text("Will not fit")

    page.focus("#tab-estimate")
    for tab in ("charts", "whatif", "plan", "compare", "keep", "estimate"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"tab-{tab}"
        assert page.locator(f"#panel-{tab}").is_visible()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("visit", [DARK], indirect=True)
def test_dark_is_dark(visit: Visit) -> None:
    page = visit.open()
    picture(page, "9-dark")
    channels = re.findall(r"\d+", page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert max(map(int, channels[:3])) < 50


@pytest.mark.parametrize(
    ("visit", "tabs"),
    [({}, ("estimate", "whatif", "plan", "keep")), (DARK, ("estimate", "whatif")), (PHONE, ("plan",))],
    indirect=["visit"],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_nothing_wrong(visit: Visit, tabs: tuple[str, ...]) -> None:
    page = visit.open()
    is_phone = page.locator("#sheet").is_visible()
    if is_phone:
        page.click("#sheet")
    page.fill("#f-num_gpus", "x")
    expect(page.locator("#e-num_gpus")).not_to_be_empty()
    page.fill("#f-num_gpus", "")
    expect(page.locator("#problem")).to_be_hidden()
    if is_phone:
        page.click("#sheet")
    for tab in tabs:
        page.click(f"#tab-{tab}")
        if tab == "whatif":
            expect(page.locator("#whatif .changes")).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


DROP = """text => {
  const files = new DataTransfer();
  files.items.add(new File([text], "train.sh"));
  document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
}"""


def test_a_launch_line_a_name_and_a_dropped_script(visit: Visit) -> None:
    page = visit.open()
    page.fill("#f-document", "trl sft --model_name_or_path Qwen/Qwen3-8B --num_processes 8")
    expect(page.locator("#f-num_gpus")).to_have_attribute("placeholder", "8")
    page.fill("#f-document", "Qwen/Qwen3-32B")
    expect(page.locator("#f-num_gpus")).to_have_attribute("placeholder", "1")
    picture(page, "a-name")
    page.evaluate(DROP, "#!/bin/bash\nNPROC_PER_NODE=4 swift sft --model Qwen/Qwen3-8B --max_length 300\n")
    expect(page.locator("#f-num_gpus")).to_have_attribute("placeholder", "4")
    expect(page.locator("#f-seq_len")).to_have_attribute("placeholder", "300")
    picture(page, "a-script")


def test_lengths_of_ones_own(visit: Visit) -> None:
    page = visit.open()
    page.click("text=Lengths of your own data")
    before = tile(page, "time")
    page.fill("#f-mean_tokens", "700")
    expect(page.locator("#e-longest_tokens")).to_contain_text("longest_tokens is missing")
    page.fill("#f-longest_tokens", "1000")
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#tile-time")).not_to_have_text(before)
    page.fill("#f-mean_tokens", "")
    page.fill("#f-longest_tokens", "")
    page.fill("#f-length_counts", "100,10\n200,10\n")
    expect(page.locator("#answer")).to_contain_text("6 steps")  # 20 samples in steps of 16, three times
    assert page.input_value("#f-length_counts") == "100,10\n200,10\n"


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_it_works_without_a_script(visit: Visit) -> None:
    page = visit.open()
    page.fill("#f-document", LLAMAFACTORY)
    page.select_option("#f-gpu", "H200-SXM-141GB")
    page.click(".unscripted button")
    expect(page.locator("#answer .verdict")).to_contain_text("on H200-SXM-141GB")
    assert page.input_value("#f-document") == LLAMAFACTORY
    with page.expect_download(timeout=60_000) as kept:
        page.click("[formaction='/download/run.yaml']")
    assert kept.value.suggested_filename == "run.yaml"
