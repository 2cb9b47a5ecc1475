"""The Space answers as the page does, refuses what is wrong in one sentence, needs Gradio for its form alone.

`make space` starts it with Gradio and asks it over HTTP.
"""

import re
import subprocess
import sys
from typing import Any

import pytest

from finegauge import read
from finegauge.answers.estimate import estimate_answer
from finegauge.render.report import plain
from finegauge.render.run_parts import headline
from spaces.app import EXAMPLE, NOTHING, answer, best
from tests.house.sources import ROOT

SHORT = "model: llama-3.1-8b\nmethod: lora\n"


def cells(table: Any) -> dict[str, list[str]]:
    """Return the rows by their first cell."""
    return {row[0]: row[1:] for row in table["data"]}


def test_the_verdict_is_that_of_the_command(tmp_path: Any) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(SHORT, "utf-8")
    theirs = estimate_answer([read(str(path), ("num_samples=1000",)).replace(gpu="A40")]).found[0]
    said, figures, parts, offers = answer(SHORT, "A40", "num_samples=1000")
    assert plain(headline(theirs)) in said
    assert cells(figures)["One step"][0].endswith(" s")
    assert {"weights", "total"} <= set(cells(parts))
    assert len(offers["headers"]) == len(offers["data"][0])


def test_the_example_is_answered() -> None:
    said, figures, *_ = answer(EXAMPLE, "L40S", "num_samples=15000")
    assert said.startswith("### Fits")
    assert figures["data"]


def test_a_change_changes_the_answer() -> None:
    assert answer(SHORT, "A40", "micro_batch_size=4")[0] != answer(SHORT, "A40", "")[0]


def test_a_plan() -> None:
    said, front = best(SHORT, "A40", "num_samples=1000", 2.0, None, "time")
    assert said.startswith("### Fastest")
    assert front["headers"][:3] == ["GPUs", "batch", "recipe"]
    assert front["data"]


@pytest.mark.parametrize(
    ("document", "gpu", "changes", "sentence"),
    [
        ("x: [", "A40", "", "not valid YAML"),
        ("", "A40", "", "model"),
        (None, None, None, "model"),
        (SHORT, "A400", "", "Did you mean"),
        (SHORT, "/etc/passwd", "", "names a file"),
        (SHORT, "A40", "model=../secret/config.json", "names a file"),
        (SHORT, "A40", "nonsense", "field=value"),
        (SHORT, "A40", "micro_batch_size=-1", "micro_batch_size"),
    ],
)
def test_what_is_wrong_is_one_sentence(document: Any, gpu: Any, changes: Any, sentence: str) -> None:
    said, *tables = answer(document, gpu, changes)
    assert said.startswith("**Error:**")
    assert sentence in said
    assert "\n" not in said
    assert tables == [NOTHING] * 3
    assert best(document, gpu, changes, None, None, None)[0].startswith("**Error:**")


def test_a_limit_that_is_none_is_one_sentence() -> None:
    assert best(SHORT, "A40", "", -1.0, None, "cost")[0].startswith("**Error:**")


def test_gradio_is_imported_for_the_form_alone() -> None:
    code = "import sys, spaces.app; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_space_is_described() -> None:
    text = (ROOT / "spaces" / "README.md").read_text("utf-8")
    head = dict(re.findall(r"^(\w+): (.+)$", text.split("---")[1], flags=re.MULTILINE))
    assert head["sdk"] == "gradio"
    assert (ROOT / "spaces" / head["app_file"]).is_file()
    assert re.search(
        r"^finegauge\[web\]$", (ROOT / "spaces" / "requirements.txt").read_text("utf-8"), re.MULTILINE
    )
