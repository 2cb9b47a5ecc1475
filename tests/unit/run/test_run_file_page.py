"""docs/run-file.md lists every field with its default, and nothing else."""

import re
from pathlib import Path

from finegauge.formats.reading import read
from finegauge.run.field import UNSTATED
from finegauge.run.run import DEFAULTS, Run

PAGE = (Path(__file__).parents[3] / "docs" / "run-file.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, flags=re.MULTILINE))


def default_text(name: str) -> str:
    """Return the default of a field as the page writes it."""
    default = DEFAULTS[name]
    if name in ("model", "method"):
        return "required"
    if default is UNSTATED:
        return "none" if "None" in str(Run.__annotations__[name]) else "derived"
    if default in ("", ()):
        return "empty" if default == "" else "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_every_field_stands_on_the_page_with_its_default() -> None:
    assert {name: default_text(name) for name in DEFAULTS} == ROWS


def test_the_example_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[0])
    assert read(path).gpu == "A100-SXM4-80GB"
