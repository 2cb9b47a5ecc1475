"""What `finegauge validate --here` does: device profile, predictions, measurements, verdict."""

import json
import os
from functools import partial
from tempfile import TemporaryDirectory

import click

from finegauge.cli.micro import check_libraries
from finegauge.cli.question import say

HOLDS, DOES_NOT_HOLD = 0, 10


def validate_on(device: str, *, num: int, seed: int, steps: int, threads: int, as_json: bool) -> int:
    """Print how predictions and measurements of unseen configurations compare; return the exit code.

    Raises: UnsupportedError without PyTorch or the device.
    """
    from finegauge.catalogue.device_profile import device_profile
    from finegauge.measure.measure import measure
    from finegauge.measure.options import Options
    from finegauge.report.here import here_lines
    from finegauge.validate.here import validate_here

    check_libraries()
    path = _profile_path(device, threads)
    options = Options(device=device, steps=steps, threads=device_profile(path).threads)
    with TemporaryDirectory(prefix="finegauge-") as folder:
        found = validate_here(
            path, partial(measure, options=options), folder, num=num, seed=seed, heard=_heard
        )
        if as_json:
            say(json.dumps({"command": "validate --here", **found.to_json()}, allow_nan=False))
        else:
            say(here_lines(found))
    return HOLDS if found.holds else DOES_NOT_HOLD


def _profile_path(device: str, threads: int) -> str:
    """Return the path of this machine's device profile, timed now if there is none for so many threads."""
    from finegauge.catalogue.device_profile import device_profile, shelf_path, write

    path = shelf_path(device)
    if not os.path.isfile(path) or (threads and device_profile(path).threads != threads):
        from finegauge.measure.micro.micro import micro

        click.echo("Timing this machine's operators once: about two minutes.", err=True)
        write(micro(device=device, threads=threads), path)
    return path


def _heard(done: int, num: int) -> None:
    """Say on stderr which configuration is measured."""
    click.echo(f"measuring {done + 1} of {num}", err=True)
