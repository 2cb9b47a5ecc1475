"""What README.md shows and a program knows better: the file tree, outputs of commands, their accuracy.

`python -m tests.house.readme` (make readme) rewrites each between its marks. The tree comes from the
first sentences of the module docstrings, and a test keeps it true; the estimate ages with the prices. The
measurement is this machine's, best taken while it is idle; its device profile is made where there is none.
The accuracy is that of `finegauge validate` on the shipped tables, and of the shipped calibration on
sources that it had not seen.
"""

import ast
import os
import re
import subprocess
import sys
from statistics import median

from finegauge.catalogue.device_profile import own_profile_path
from finegauge.catalogue.tables import measurement_tables
from finegauge.documents import read_document
from finegauge.prediction.calibration import SHIPPED
from finegauge.render.validation import METRIC_NAMES
from finegauge.validation.summary import confusion, memory_errors, time_errors, validate
from tests.house.sources import EXAMPLE, PACKAGE, ROOT, tree_of

TREE_MARKS = "<!-- tree: make readme -->", "<!-- end of tree -->"
ACCURACY_MARKS = "<!-- accuracy: make readme -->", "<!-- end of accuracy -->"
OUTPUT_MARKS = "<!-- output: make readme -->", "<!-- end of output -->"
MEASURED_MARKS = "<!-- measured: make readme -->", "<!-- end of measured -->"
MOST_LINES = 8  # of each paragraph of a measurement


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?:\s|$)", paragraph, maxsplit=1)[0]


def rooms() -> dict[str, str]:
    """Return what each package and module at the top of `finegauge` is for."""
    found = {}
    for path in sorted(PACKAGE.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix != ".py" or not source.is_file() or path.name == "__init__.py":
            continue
        name = f"{path.name}/" if path.is_dir() else path.name
        found[name] = first_sentence(ast.get_docstring(tree_of(source)) or "")
    return found


def tree() -> str:
    """Return the file tree as README.md shows it."""
    return "\n".join(["src/finegauge/", *(f"  {name:<14} {sentence}" for name, sentence in rooms().items())])


def output() -> str:
    """Return what `finegauge estimate` prints for the example, at 100 columns."""
    return _printed("estimate", EXAMPLE.relative_to(ROOT).as_posix())


def measured() -> str:
    """Return what `finegauge measure` prints for the tiny mixture, of each paragraph the first lines."""
    if not os.path.isfile(own_profile_path("cpu")):
        _printed("micro", "--device", "cpu")
    text = _printed("measure", "examples/tiny_moe.yaml", "--device", "cpu", "--layers", "--experts")
    paragraphs = [paragraph.splitlines() for paragraph in text.split("\n\n")]
    shown = ([*lines[:MOST_LINES], *(["  …"] if len(lines) > MOST_LINES else [])] for lines in paragraphs)
    return "\n\n".join("\n".join(lines) for lines in shown)


def _printed(*words: str) -> str:
    """Return a command of FineGauge and what it prints, at 100 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "finegauge", *words],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.rstrip() for line in done.stdout.rstrip().splitlines())
    return "\n".join([f"$ finegauge {' '.join(words)}", *lines])


def accuracy() -> str:
    """Return the errors on the shipped tables as a Markdown table."""
    calibration = read_document(SHIPPED)
    validation = validate(measurement_tables())
    answered = validation.answered
    errors = sorted((one["left_out_median_error"], one["source"]) for one in calibration["sources"])
    (least, best), (most, worst) = errors[0], errors[-1]
    spread = f"{_percent(least)} ({best}) to {_percent(most)} ({worst})"
    middle = _percent(median(error for error, _ in errors))
    lines = [
        "| held against | rows | error |",
        "|---|---|---|",
        f"| step time of each of {len(errors)} sources, left out of the fit | {calibration['num_rows']} | "
        f"median by source {spread}, middle {middle} |",
    ]
    named = [
        (
            "step time, the sources seen; configuration stated",
            [one for one in answered if one.row.times_complete],
            time_errors,
        )
    ]
    for metric, name in METRIC_NAMES.items():
        rows = [one for one in validation.of_metric(metric) if one.row.memory_complete]
        named.append((f"peak memory, {name}; configuration stated", rows, memory_errors))
    for name, rows, count in named:
        if found := count(rows):
            figures = f"median {_percent(found.median)}, 90 % within {_percent(found.p90)}"
            lines.append(f"| {name} | {found.rows} | {figures} |")
    matrix = confusion(answered)
    lines.append(f"| fits or not | {sum(matrix)} | {_percent(matrix.accuracy or 0.0)} right |")
    return "\n".join(lines)


def _percent(fraction: float) -> str:
    """Return "5.4 %"."""
    return f"{100 * fraction:.1f} %"


def between(marks: tuple[str, str], content: str) -> str:
    """Return `content` as a block between its two marks."""
    start, end = marks
    return f"{start}\n```text\n{content}\n```\n{end}"


def main() -> None:
    """Rewrite the blocks of README.md."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    blocks = {
        TREE_MARKS: between(TREE_MARKS, tree()),
        OUTPUT_MARKS: between(OUTPUT_MARKS, output()),
        MEASURED_MARKS: between(MEASURED_MARKS, measured()),
        ACCURACY_MARKS: "\n".join((ACCURACY_MARKS[0], accuracy(), ACCURACY_MARKS[1])),
    }
    for (start, end), block in blocks.items():
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = before + block + after
    readme.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
