"""What an assistant can ask: estimate, plan, check, max_batch, models, gpus. None of them writes anything.

Answers are the JSON of the command of the same name; the arguments of each tool are told by JSON schemas.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from finegauge.answers.arguments import MAX_LIST, Asked
from finegauge.documents import json_text
from finegauge.render.json import document
from finegauge.units import HOUR_S

MAX_ROWS = 50

_SUBJECT: dict[str, Any] = {
    "file": {
        "type": "string",
        "description": "A training file below the server's folder: LLaMA-Factory, Axolotl, TRL, torchtune, "
        "NeMo, ms-swift, Unsloth, torchtitan, a FineGauge run file or a config.json. Or give 'run'.",
    },
    "run": {
        "type": "object",
        "description": "The fields of a run instead of a file, such as {'model': 'llama-3-8b', 'method': "
        "'qlora', 'dataset': 'math_14k', 'seq_len': 2048, 'micro_batch_size': 4}.",
    },
    "overrides": {
        "type": "object",
        "description": "Fields laid over the file or the run, such as {'micro_batch_size': 8}.",
    },
}
_GPUS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "maxItems": MAX_LIST,
    "description": "GPUs to ask about, by the names that the tool 'gpus' lists.",
}
_PATTERN: dict[str, Any] = {"type": "string", "description": "Part of a name; all where it is not given."}


class Tool(NamedTuple):
    """One question that may be asked."""

    name: str
    description: str
    arguments: dict[str, Any]  # JSON schemas by name
    answer: Callable[[Asked], str]  # a JSON text

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        return {"type": "object", "properties": self.arguments, "additionalProperties": False}

    def call(self, asked: Asked) -> str:
        """Return the answer as JSON on one line.

        Raises: FineGaugeError in one sentence.
        """
        asked.check_names(self.arguments)
        return json_text(json.loads(self.answer(asked)), None)


def _estimate(asked: Asked) -> str:
    """Return memory, time, cost and energy, once per GPU."""
    from finegauge.answers.estimate import estimate_answer

    at_max_batch, runs = asked.flag("at_max_batch"), asked.runs()
    return document("estimate", estimate_answer(runs, at_max_batch=at_max_batch))


def _check(asked: Asked) -> str:
    """Return whether the run fits, once per GPU."""
    from finegauge.answers.estimate import check_answer

    return document("check", check_answer(asked.runs()))


def _max_batch(asked: Asked) -> str:
    """Return the largest micro-batch that fits, once per GPU."""
    from finegauge.answers.estimate import capacity_answer
    from finegauge.planning.capacity import max_micro_batch_size

    found = [(run, max_micro_batch_size(run)) for run in asked.runs()]
    return document("max-batch", capacity_answer(found))


def _plan(asked: Asked) -> str:
    """Return the cheapest, fastest or greenest way to do the run."""
    from finegauge.answers.plan import plan_answer
    from finegauge.planning.plan import plan
    from finegauge.planning.selection import Wanted
    from finegauge.run.field import choice

    within_h, budget = asked.number("within_hours", 1e6), asked.number("budget_usd", 1e12)
    minimise = asked.text("minimise") or "cost"
    wanted = Wanted(
        within_s=None if within_h is None else within_h * HOUR_S,
        budget_usd=budget,
        minimise=choice(("cost", "time", "energy"))("minimise", minimise),
        spot=asked.flag("spot"),
        keep_method=asked.flag("keep_method"),
        gpus=asked.texts("gpus"),
        providers=asked.texts("providers"),
        max_gpus=asked.whole("max_gpus", 64, 65_536),
    )
    return document("plan", plan_answer(plan(asked.run(), wanted)))


def _models(asked: Asked) -> str:
    """Return the models whose name, alias or kind contains the pattern, without their configurations."""
    from finegauge.answers.catalogue_rows import found_models

    rows = []
    for found in found_models(asked.text("pattern")):
        row = {**found._asdict(), "model_type": str(found.config.get("model_type", ""))}
        del row["config"]
        rows.append(row)
    return _listed("models", rows)


def _gpus(asked: Asked) -> str:
    """Return the GPUs whose name or alias contains the pattern."""
    from finegauge.answers.catalogue_rows import found_gpus, plain

    rows = [plain(spec) | {"measured": None} for spec in found_gpus(asked.text("pattern"))]
    return _listed("gpus", rows)


def _listed(command: str, rows: list[dict[str, Any]]) -> str:
    """Return the first rows as JSON, and how many there are."""
    whole = {"command": command, "num_found": len(rows), "results": rows[:MAX_ROWS]}
    return json_text(whole, None)


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "estimate",
            "Predict what a fine-tuning run takes on each GPU: memory, seconds per step, hours, dollars, "
            "kWh, CO2, and where they go. Without 'gpus' (and none in the run) common ones are compared.",
            {**_SUBJECT, "gpus": _GPUS, "at_max_batch": {
                "type": "boolean", "description": "Take the largest micro-batch that is safe on each GPU."}},
            _estimate,
        ),
        Tool(
            "check",
            "Say whether a fine-tuning run fits its GPU: fits, risky or will_not_fit, with the probability "
            "of running out of memory and the micro-batch that would be safe.",
            {**_SUBJECT, "gpus": _GPUS},
            _check,
        ),
        Tool(
            "max_batch",
            "Find the largest micro-batch of a fine-tuning run that fits each GPU.",
            {**_SUBJECT, "gpus": _GPUS},
            _max_batch,
        ),
        Tool(
            "plan",
            "Find the cheapest, fastest or greenest way to do a fine-tuning run: GPU, count, provider, "
            "method, sharding, batch; with the front of cost, time and energy, and why others lose.",
            {
                **_SUBJECT,
                "within_hours": {"type": "number", "description": "The longest it may take."},
                "budget_usd": {"type": "number", "description": "The most it may cost."},
                "minimise": {"enum": ["cost", "time", "energy"], "description": "cost by default"},
                "gpus": {**_GPUS, "description": "Only these GPUs."},
                "providers": {**_GPUS, "description": "Only these clouds."},
                "max_gpus": {"type": "integer", "description": "The most GPUs, 64 by default."},
                "keep_method": {"type": "boolean", "description": "Keep full, lora or qlora as it is."},
                "spot": {"type": "boolean", "description": "Cost and budget are of spot instances."},
            },
            _plan,
        ),
        Tool("models", "List the models that are known, with their sizes.", {"pattern": _PATTERN}, _models),
        Tool("gpus", "List the GPUs that are known, with their figures.", {"pattern": _PATTERN}, _gpus),
    )
}  # fmt: skip
