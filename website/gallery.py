"""The gallery: pictures that real commands draw of shipped examples, each with the command that drew it.

`python -m website.gallery` draws those that are not there yet into `build/gallery`, which git
ignores; as a hook of MkDocs this module does the same and adds the page that shows them.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from website.screenshot import browser, take

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "gallery"
OUT = "OUT"  # in a command: the folder that pictures go to
PLANS = "examples/plans"


class Picture(NamedTuple):
    """One picture."""

    path: str  # below the folder
    tells: str  # what is to be seen in it


class Shown(NamedTuple):
    """Commands, and the pictures that the last of them draws."""

    title: str
    commands: tuple[str, ...]
    pictures: tuple[Picture, ...]  # in the order of the page


PAGE = "finegauge serve"
SIZES = {"page.png": (1300, 1350), "page_on_a_phone.png": (390, 850)}  # pixels

SHOWN = (
    Shown(
        "The page",
        (PAGE,),
        (
            Picture("page.png", "Paste a training file, change fields, and every figure follows."),
            Picture("page_on_a_phone.png", "The same on a phone."),
        ),
    ),
    Shown(
        "A run",
        (f"finegauge report examples/mixtral_qlora_commonsense.yaml -o {OUT}/run",),
        (
            Picture("run/memory.svg", "What has to fit into the GPU, one kind after the other."),
            Picture("run/time.svg", "Where the seconds of a step go: stage, layer, kernel."),
            Picture(
                "run/throughput.svg", "Throughput against batch, with its interval and laws fitted to it."
            ),
            Picture("run/cost.svg", "The same run on other GPUs; the line is the Pareto front."),
            Picture("run/roofline.svg", "Every operator against what the GPU could do."),
        ),
    ),
    Shown(
        "A plan",
        (f"finegauge report {PLANS}/llama3_70b_qlora.yaml --plan -o {OUT}/plan.svg --figure cost",),
        (Picture("plan.svg", "The plans that no other beats in cost, time and energy."),),
    ),
    Shown(
        "Optimisations compared",
        (
            f"finegauge campaign dissecting --only predicted -o {OUT}/dissecting",
            f"finegauge report {OUT}/dissecting -o {OUT}/gains.svg --figure gains-1",
        ),
        (
            Picture(
                "gains.svg",
                "Gains over the baseline, Llama-2-7B on eight A800: outside the dashed circle is better.",
            ),
        ),
    ),
    Shown(
        "The seed paper, regenerated",
        (f"finegauge reproduce xia2024 fig-4 fig-14 table-4 -o {OUT}/xia2024",),
        (
            Picture("xia2024/fig-14.svg", "Throughput measured, fitted and predicted."),
            Picture("xia2024/fig-4.svg", "Seconds of a step by stage, the paper's beside ours."),
            Picture("xia2024/table-4.svg", "The cost of ten epochs."),
        ),
    ),
)


def drawable() -> list[Shown]:
    """Return what this machine can draw: the page needs a browser."""
    return [shown for shown in SHOWN if PAGE not in shown.commands or browser()]


def draw(folder: Path = FOLDER) -> list[str]:
    """Draw the pictures that are not in `folder` yet, and return the commands that ran.

    Raises: RuntimeError if a command fails, or draws something else.
    """
    ran = []
    for shown in drawable():
        if all((folder / picture.path).is_file() for picture in shown.pictures):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for command in shown.commands:
            if command == PAGE:
                _photograph(shown.pictures, folder)
            else:
                _run(command, folder)
            ran.append(command)
        missing = [one.path for one in shown.pictures if not (folder / one.path).is_file()]
        if missing:
            raise RuntimeError(f"'{shown.commands[-1]}' did not draw {', '.join(missing)}.")
    return ran


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the gallery's page, and its pictures, drawn now where they are not there."""
    draw()
    for shown in drawable():
        for picture in shown.pictures:
            path = str(FOLDER / picture.path)
            files.append(File.generated(config, f"gallery/{picture.path}", abs_src_path=path))
    files.append(File.generated(config, "gallery.md", content=page()))
    return files


def page() -> str:
    """Return the Markdown of the gallery."""
    lines = ["# Gallery", "", "Drawn when this site was built, by the commands below each title.", ""]
    for shown in drawable():
        commands = [command.replace(f"{OUT}/", "") for command in shown.commands]
        lines += [f"## {shown.title}", "", "```sh", *commands, "```", ""]
        for picture in shown.pictures:
            lines += [f"{picture.tells}", "", f"![{picture.tells}](gallery/{picture.path}){{ .picture }}", ""]
    return "\n".join(lines)


def _photograph(pictures: tuple[Picture, ...], folder: Path) -> None:
    """Take pictures of the page, one for each size."""
    for picture in pictures:
        take(folder / picture.path, *SIZES[picture.path])


def _run(command: str, folder: Path) -> None:
    """Run one command of the gallery at the root of the repository."""
    words = [word.replace(OUT, str(folder)) for word in command.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"'{command}' ended with {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    began = time.monotonic()
    drawn = draw()
    sys.stdout.write(f"{FOLDER}: {len(drawn)} commands in {time.monotonic() - began:.0f} s\n")
