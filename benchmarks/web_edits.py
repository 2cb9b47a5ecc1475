"""How long do people wait for the page? First paint, 50 edits, a drag, in Debian's Chromium, here.

The first useful paint is the frame in which the verdict is drawn (the browser's own element timing), in a
fresh window with an empty cache; beside it the browser's "first contentful paint". An edit is timed in
the browser, from the event of the key or the choice until the frame with the new answer is drawn: the wait
for a pause in typing, the request, the answer, and drawing it are all in it. A drag is timed from frame to
frame in which the point on the grid of what fits has moved. The promise: p95 of the first two under 150 ms,
30 such frames a second, on a quiet machine. This program ends with 1 where one is broken and the machine was
quiet, with 75 where it was not, or has no Chromium.
"""

import itertools
import shutil
import sys

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.web_load import NOT_JUDGED, is_quiet, serving

NUM_PAINTS, NUM_EDITS, WARM_UP = 50, 50, 3
PROMISE_MS = 150.0
FRAMES_PER_S, NUM_TURNS = 30.0, 4  # of a drag; how often it goes across the grid
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run"]  # fmt: skip
EDITS = (
    ("gpu", ("A40", "H100-SXM5-80GB", "L40S", "A100-SXM4-80GB", "RTX 4090")),
    ("micro_batch_size", ("1", "2", "8", "16", "3")),
    ("activation_checkpointing", ("none", "full", "selective", "offload", "full")),
    ("seq_len", ("512", "1024", "2048", "4096", "777")),
    ("method", ("lora", "full", "qlora", "freeze", "qlora")),
    ("model", ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B",
               "meta-llama/Llama-3.1-70B", "EleutherAI/pythia-1.4b")),
    ("optimizer", ("adamw_8bit", "adafactor", "lion", "sgd", "adamw")),
    ("packing", ("true", "false", "true", "false", "true")),
    ("num_gpus", ("2", "4", "8", "16", "1")),
    ("gradient_accumulation_steps", ("1", "2", "4", "8", "16")),
)  # fmt: skip
PAINTS = """() => new Promise((done) => {
  const observer = new PerformanceObserver((list) => done([
    performance.getEntriesByName("first-contentful-paint")[0].startTime, list.getEntries()[0].renderTime,
  ]));
  observer.observe({ type: "element", buffered: true });
})"""
EDIT = """([field, value]) => new Promise((done, fail) => {
  const control = document.getElementById(`f-${field}`);
  const start = performance.now();
  setTimeout(() => fail(new Error(`no answer to ${field}=${value}`)), 10000);
  document.addEventListener("htmx:oobAfterSwap", function heard(event) {
    if (event.detail.target.id !== "glance") return;
    document.removeEventListener("htmx:oobAfterSwap", heard);
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  });
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
})"""


WATCH = """() => {
  const point = document.getElementById("heat-point");
  let last = "";
  window.frames_ms = [];
  requestAnimationFrame(function frame(now) {
    if (point.style.transform !== last) window.frames_ms.push(now);
    last = point.style.transform;
    requestAnimationFrame(frame);
  });
}"""


def paints_ms(browser: Browser, url: str) -> tuple[list[float], list[float]]:
    """Return the first contentful and the first useful paint of fresh windows."""
    found = []
    for _ in range(NUM_PAINTS + WARM_UP):
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        found.append(page.evaluate(PAINTS))
        context.close()
    first, useful = zip(*found[WARM_UP:], strict=True)
    return list(first), list(useful)


def edits_ms(page: Page) -> list[float]:
    """Return the time of every edit, from its event to the frame that shows its answer."""
    page.wait_for_selector("html.ready", state="attached")
    page.evaluate(EDIT, ["epochs", "2"])
    page.evaluate(EDIT, ["epochs", ""])
    edits = [(field, values[turn]) for turn in range(5) for field, values in EDITS]
    return [float(page.evaluate(EDIT, [field, value])) for field, value in edits]


def drag_ms(page: Page) -> list[float]:
    """Return the time between frames in which the point of the grid has moved, while it is dragged across."""
    page.click("#tab-charts")
    page.wait_for_selector("#scaling .chart")
    page.locator("#heat-point").scroll_into_view_if_needed()
    held, grid = page.locator("#heat-point").bounding_box(), page.locator(".heat tbody").bounding_box()
    assert held is not None
    assert grid is not None
    page.mouse.move(held["x"] + held["width"] / 2, held["y"] + held["height"] / 2)
    page.mouse.down()
    page.evaluate(WATCH)
    for turn in range(NUM_TURNS):
        x = grid["x"] + grid["width"] * (0.9 if turn % 2 == 0 else 0.15)
        page.mouse.move(x, grid["y"] + grid["height"] * (turn + 1) / (NUM_TURNS + 1), steps=60)
    times: list[float] = page.evaluate("window.frames_ms")
    page.mouse.up()
    return [after - before for before, after in itertools.pairwise(times)]


def told(what: str, times_ms: list[float]) -> float:
    """Print the median, p95 and the worst; return p95."""
    ordered = sorted(times_ms)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    median = ordered[len(ordered) // 2]
    worst = ordered[-1]
    print(f"{what:<12} n={len(ordered)}  median {median:.1f} ms  p95 {p95:.1f} ms  worst {worst:.1f} ms")
    return p95


def main() -> int:
    """Measure, print, and judge where the machine is quiet."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("Chromium is not installed: apt-get install chromium")
        return NOT_JUDGED
    judged = is_quiet()
    with serving() as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        first, useful = paints_ms(browser, url)
        told("first paint", first)
        paint = told("useful paint", useful)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        edit = told("edits", edits_ms(page))
        frames = drag_ms(page)
        told("drag, frames", frames)
        rate = 1000.0 * len(frames) / sum(frames)
        print(f"drag: {rate:.0f} frames/s")
        browser.close()
    broken = max(paint, edit) > PROMISE_MS or rate < FRAMES_PER_S
    return int(broken) if judged else NOT_JUDGED


if __name__ == "__main__":
    sys.exit(main())
