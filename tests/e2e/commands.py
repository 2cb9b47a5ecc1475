"""How the end-to-end tests run the command: in this process, or as a user's shell would."""

import gc
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from finegauge.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_qlora_commonsense.yaml")
BLACKMAMBA = str(EXAMPLES / "blackmamba_full.yaml")


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


def finegauge(*arguments: str) -> Done:
    """Run one command in this process, through the same `main` as the shell's."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0
        finally:
            gc.enable()  # which a command switches off for its short life
    return Done(code, out.getvalue(), err.getvalue())


def shell(*arguments: str, **environment: str) -> Done:
    """Run `python -m finegauge` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "finegauge", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Done(done.returncode, done.stdout, done.stderr)
