"""Tasks of lm-evaluation-harness on a model that is here: GSM8K, HellaSwag, or one's own YAML.

Takes the extra: pip install 'finegauge[harness]'. Nothing is fetched unless a task's own data set
is, which the harness does by itself and not while HF_HUB_OFFLINE is set.
"""

from collections.abc import Sequence
from typing import Any

from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError
from finegauge.measure.models.build import checkpoint_folder
from finegauge.measure.subject import Subject
from finegauge.workload.run import Run


def harness_scores(
    subject: Subject,
    tasks: Sequence[str],
    *,
    tokenizer: str,
    folder: str | None = None,
    limit: int | None = None,
    batch_size: int = 8,
) -> dict[str, dict[str, float]]:
    """Return the scores of `subject` by task and metric: {"gsm8k": {"exact_match,strict-match": 0.4}}.

    Args:
        subject: The model as it is now.
        tasks: Names of the harness's tasks, or of those in `folder`.
        tokenizer: Folder of the model's tokenizer.
        folder: Where YAML files of own tasks are; None: only the harness's own are known.
        limit: Questions of each task; None: all.
        batch_size: Questions at a time.
    Raises: UnsupportedError without the harness, UnknownNameError for a task it does not have.
    """
    known = task_manager(tasks, folder)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    training = subject.model.training  # which HFLM ends
    model = HFLM(
        pretrained=subject.model,
        tokenizer=_tokenizer(tokenizer),
        batch_size=batch_size,
        device=str(subject.device),
    )
    try:
        found = simple_evaluate(model, tasks=list(tasks), task_manager=known, limit=limit, bootstrap_iters=0)
    finally:
        subject.model.train(training)
    return {task: _numbers(scores) for task, scores in (found or {})["results"].items()}


def task_manager(tasks: Sequence[str], folder: str | None) -> Any:
    """Return what knows `tasks`.

    Raises: UnsupportedError without the harness, UnknownNameError for a task it does not have.
    """
    try:
        from lm_eval import tasks as theirs
    except ImportError:
        raise UnsupportedError(
            "Tasks of lm-evaluation-harness need it: pip install 'finegauge[harness]'. Exact match and "
            "multiple choice on your own file work without it."
        ) from None
    known = theirs.TaskManager(include_path=folder, include_defaults=folder is None)
    for task in tasks:
        if task not in known.all_tasks:
            raise UnknownNameError("task of lm-evaluation-harness", task, known=known.all_tasks)
    return known


def tokenizer_folder(run: Run) -> str:
    """Return where the tokenizer of the run's model is.

    Raises: FieldError where the run names none and its model is no folder that holds one.
    """
    folder = run.tokenizer or checkpoint_folder(run)
    if not folder:
        raise FieldError(
            "Tasks of lm-evaluation-harness are texts, so the run needs a tokenizer; add 'tokenizer: FOLDER'."
        )
    return folder


def _tokenizer(folder: str) -> Any:
    """Return the tokenizer of a local folder; nothing is fetched."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer={folder} cannot be loaded: {str(error).splitlines()[0]}") from None


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    """Return the scores alone, without the task's name and what was not computed."""
    return {name: float(value) for name, value in scores.items() if isinstance(value, float)}
