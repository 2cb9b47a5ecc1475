"""The work of a process for one request: a page's handler or one question of the JSON interface.

Plain values come in, a Reply goes out. An error is one sentence, never a traceback: about the user's input,
or about an internal error.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from finegauge.catalogue.hub import user_catalogue
from finegauge.errors import FineGaugeError, internal_error
from finegauge.sandbox import reading_only
from finegauge.web import pages
from finegauge.web.api import LISTINGS, QUESTIONS, answered
from finegauge.web.choices import job_folders
from finegauge.web.storage import Reply, upload_store

CHARTS = ("heatmap", "beside", "timeline", "scaling")
PAGES = (
    *("index", "submitted", "answer", "advice", "whatif", "plan", "report", "compare", "files", "choices"),
    *CHARTS,
)
DOWNLOADS = ("run.yaml", "profile.json", "plan.zip", "files.zip")
SEARCHES = ("plan", "plan.zip", "report", "advice")  # what takes the lane of searches


def page(name: str, fields: Mapping[str, str]) -> Reply:
    """Return a page or a fragment."""
    return _answered(lambda: getattr(pages, name)(fields))


def download(name: str, fields: Mapping[str, str]) -> Reply:
    """Return a file to keep."""
    return _answered(lambda: pages.download(name, fields))


def question(name: str, asked: Mapping[str, Any]) -> Reply:
    """Return the JSON answer to a question about a run, or rows of the catalogue."""
    with reach():
        return answered((QUESTIONS | LISTINGS)[name], asked)


def _answered(handler: Any) -> Reply:
    try:
        with reach():
            reply: Reply = handler()
    except FineGaugeError as error:
        return Reply(f"{' '.join(str(error).split())}\n", 422, "text/plain")
    except MemoryError:
        raise
    except Exception as error:
        return Reply(f"{internal_error(error)}\n", 500, "text/plain")
    return reply


def reach() -> AbstractContextManager[None]:
    """Return the scope in which only what was pasted, the examples and the user's catalogue are read."""
    return reading_only(upload_store().folder, *job_folders(), *user_catalogue())


def warm() -> None:
    """Answer one of each once, so that what they load and keep is there."""
    run = {"model": "llama-3-8b", "method": "qlora", "gpu": "H100", "num_samples": 1_000}
    for name in ("read", "estimate", "explain", "check", "max-batch", "whatif", "plan"):
        question(name, {"run": run})
    for name in ("models", "gpus", "offers", "datasets"):
        question(name, {})
    for name in ("index", "choices", "compare"):
        page(name, {})
    for name in ("answer", *CHARTS):
        page(name, {name: str(value) for name, value in run.items()})
