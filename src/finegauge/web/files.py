"""Files to keep: a run with what was pasted, a plan as a framework's files in one archive."""

import io
import os
import zipfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from finegauge.web.reply import Reply
from finegauge.web.room import room

if TYPE_CHECKING:
    from finegauge.plan.plan import Plan
    from finegauge.workload.run import Run

_BESIDE = {"model": "config.json", "dataset": "lengths.csv"}
_WHEN = (2026, 1, 1, 0, 0, 0)  # of every file in an archive, so that equal contents are equal archives


def run_file(run: "Run") -> Reply:
    """Return a run file; an archive of it and what it names, where that was pasted."""
    beside = {
        name: room().text_of(getattr(run, field))
        for field, name in _BESIDE.items()
        if getattr(run, field) and room().holds(getattr(run, field))
    }
    if not beside:
        return Reply(run.to_yaml(), media_type="application/yaml", filename="run.yaml")
    named = run.to_yaml()
    for field, name in _BESIDE.items():
        if name in beside:
            named = named.replace(str(getattr(run, field)), name)
    return _archive({"run.yaml": named, **beside}, "run.zip")


def plan_archive(plan: "Plan", framework: str, document: str) -> Reply:
    """Return the plan to take as the files of `framework`; what a run does not know is the pasted text's.

    Raises: InputError where the framework cannot say the plan, or there is none.
    """
    from finegauge.plan.plan_export import export

    with TemporaryDirectory() as folder:
        recipe = room().keep(document, "recipe.yaml") if document.strip() else None
        written = export(plan, framework, folder, recipe=recipe)
        texts = {}
        for path in written.paths:
            with open(path, encoding="utf-8") as file:
                texts[os.path.relpath(path, folder)] = file.read()
    notes = [f"Start it with: {written.command}", *written.warnings]
    return _archive({**texts, "README.txt": "\n".join(notes) + "\n"}, f"plan-{framework}.zip")


def _archive(texts: dict[str, str], name: str) -> Reply:
    """Return texts as one archive."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            archive.writestr(zipfile.ZipInfo(path, _WHEN), text)
    return Reply(whole.getvalue(), media_type="application/zip", filename=name)
