"""A run as the files of a framework, read back and compared with the run before anybody sees them.

What a run does not know and a training needs (the learning rate, the template, the data set's name) is taken
from the file that the run was read from, its recipe. For the same framework, that is every key which neither
memory nor time depends on; for another, the few that both have under some name. Secrets stay behind.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from finegauge.catalogue.frameworks import frameworks
from finegauge.catalogue.offers import Offer
from finegauge.errors import FieldError, FineGaugeError, InputError, UnknownNameError, shown
from finegauge.formats import reading, skypilot
from finegauge.formats import sheet as text
from finegauge.formats.key_table import Format
from finegauge.formats.launcher_files import ZERO_PLUS_PLUS, Alongside
from finegauge.formats.model_keys import FROZEN, PIXELS, has_tower
from finegauge.formats.sheet import ACCELERATE, DENSE, LINEAR, Sheet, flattened, model_type, plain, value_at
from finegauge.run.phases import has_images
from finegauge.run.rules import DATA_DEGREES, FSDP, LORA_FIELDS, RL, num_experts, unused_by
from finegauge.run.run import FIELDS, Run, figures

# About the machine, the bill, the data and the record: no framework's business, carried in a comment.
FACTS = (
    "gpu", "num_gpus", "num_nodes", "node_network_gbit_per_s", "provider", "region", "startup_s",
    "saves_per_epoch", "save_steps", "eval_samples", "eval_steps", "eval_batch_size", "eval_logits",
    "eval_accumulation_steps",
    "loading", "save_state", "save_optimizer", "saves_kept", "merge_adapters", "host_memory_gib", "disk_gib",
    "dataset", "num_samples", "tokenizer", "ssm_kernels",
    "images_per_sample", "image_size", "videos_per_sample", "video_frames", "image_min_pixels",
    "image_max_pixels",
    "framework_version", "transformers_version", "bitsandbytes_version",
)  # fmt: skip
# Carried too, but somebody has to see to it.
TO_DO = {"num_experts_per_tok": "set it in the model's config.json, which the framework reads"}
_REFUSED = """
model method phase lora_rank lora_targets trainable_extra freeze_trainable_layers seq_len packing
micro_batch_size gradient_accumulation_steps max_steps num_gpus num_nodes tensor_parallel
pipeline_parallel context_parallel expert_parallel virtual_pipeline_stages
"""
REFUSED = frozenset(_REFUSED.split())
_SHARDED = {"none": 0, "zero1": 1, "zero2": 2, "fsdp_shard_grad_op": 2, "zero3": 3, "fsdp": 3, "hybrid": 3}
_OF_EXPERTS = ("experts_implementation", "quantize_experts")
_OF_ENGINES = (
    *("inference_engine", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
    *("kv_cache_dtype", "truncated_sampling", "arrivals", "arrivals_per_s", "prefix_cached_fraction"),
    *("speculative_tokens", "speculative_accepted_fraction"),
)
_OF_CRITICS = ("critic_model", "critic_method", "critic_checkpointing", "critic_sharding")
_OF_ROLLOUTS = (
    *("mean_new_tokens", "rollout_gpus", "rollout_tensor_parallel", "rollout_dtype", "rollout_sleep"),
    *("rollout_offload", "off_policy_steps", "old_log_probs", "reward_s", "ppo_epochs", "num_mini_batches"),
    *("generation_batch_size", "fuse_lora", "gather_for_generation", "gathered_layers", "ema"),
    *("reward_model", *_OF_CRITICS),
)
_OF_LENGTHS = ("padding", "pad_to_multiple_of", "over_length", "group_by_length")
_BY_FSDP = ("none", "fsdp", "fsdp_shard_grad_op", "hybrid")
_WRITING = ("ppo", "grpo", "decode", "serve")
_SECRET = re.compile(r"(hub|hf|auth|access|api|bearer|git)_?token$|secret|passw|api_?key|webhook|credential")
_OF_DATA = ("_component_", "_dir", "max_samples")  # about the data, no name of it
_WHEN = ("eval_strategy", "evaluation_strategy", "save_strategy")  # how often, which no field says


class Difference(NamedTuple):
    """One field that the files state otherwise."""

    field: str
    asked: Any
    written: Any


def differences(asked: Run, written: Run) -> list[Difference]:
    """Return the fields that the two runs do not share and that matter to `asked`."""
    return [
        Difference(field, getattr(asked, field), getattr(written, field))
        for field in FIELDS
        if field != "framework"
        and getattr(asked, field) != getattr(written, field)
        and not _same(field, asked, written)
    ]


def _same(field: str, asked: Run, written: Run) -> bool:
    if field == "framework_version":
        return asked.framework != written.framework
    if field == "model":
        return _same_model(asked.model, written.model)
    if field == "lora_targets" and asked.trains_adapters:
        return _layers(asked) == _layers(written)
    if field == "padding" and "free" in (asked.padding, written.padding):
        return False  # another attention kernel, whatever the lengths
    if field in DATA_DEGREES and asked.data_parallel == written.data_parallel:
        return asked.sharding == "none" or asked.sharding != written.sharding
    return field in _without_effect(asked)


def _without_effect(run: Run) -> Iterator[str]:
    """Return the fields that change nothing in `run`."""
    for fields, idle in (
        (LORA_FIELDS, not run.trains_adapters),
        (unused_by(run.adapter), run.trains_adapters),
        (("trainable_extra",), run.method == "full"),
        (FROZEN, not has_tower(run)),
        (("image_size", "video_frames", *PIXELS), not has_images(run)),
        (_OF_EXPERTS, not _has_experts(run)),
        (("checkpointing_reentrant",), run.activation_checkpointing == "none"),
        (("pipeline_schedule", "virtual_pipeline_stages"), run.pipeline_parallel == 1),
        (("sync_each_batch",), run.sharding not in FSDP or run.gradient_accumulation_steps == 1),
        (("sequence_parallel",), run.tensor_parallel == 1),
        (("max_new_tokens", "num_generations"), run.phase not in _WRITING),
        (_OF_ENGINES, run.phase not in (*_WRITING, "prefill")),
        (_OF_ROLLOUTS, run.phase not in RL),
        (_OF_CRITICS, run.phase != "ppo"),
        (("reference_model", "reference_offload"), run.phase not in ("dpo", *RL)),
        (("gather_for_generation", *ZERO_PLUS_PLUS), run.sharding != "zero3"),
        (("fuse_lora",), not run.trains_adapters),
        (("epochs",), run.max_steps is not None and not run.num_samples and run.dataset is None),
        (("packing_strategy",), not run.packing or run.dataset is None),
        (_OF_LENGTHS, run.dataset is None),
        (("pad_to_multiple_of",), run.padding != "longest"),
        (("sharding",), run.data_parallel * run.context_parallel == 1 and run.sharding in _BY_FSDP),
    ):
        if idle:
            yield from fields


def _has_experts(run: Run) -> bool:
    """Return whether the model routes tokens to experts; yes where it is not known."""
    try:
        config = run.config
    except FineGaugeError:
        return True
    return bool(num_experts(config.get("text_config") or config))


def _same_model(asked: str, written: str) -> bool:
    try:
        return figures(asked).config == figures(written).config
    except FineGaugeError:
        return False


def _layers(run: Run) -> frozenset[str]:
    """Return the adapted layers, all-linear and attention by name where the model's are the usual ones."""
    named = set(run.lora_targets)
    family = model_type(run)
    if family in DENSE and named & {"all-linear"}:
        named |= set(LINEAR)
        named -= {"all-linear"}
    if "attention" in named:
        named |= set(LINEAR[:4])
        named -= {"attention"}
    return frozenset(named)


def refuse_another_plan(framework: str, found: list[Difference]) -> None:
    """Raise where the files would carry out another plan.

    Raises: InputError naming the field and what the framework makes of it.
    """
    for difference in found:
        if difference.field in REFUSED or _weaker(difference):
            raise InputError(
                f"{framework} cannot say {difference.field}={plain(difference.asked)}: its files would mean "
                f"{plain(difference.written)}, which is another plan; change the run or the framework."
            )


def _weaker(difference: Difference) -> bool:
    """Return whether less is sharded or offloaded than asked."""
    if difference.field == "sharding":
        return _SHARDED.get(difference.written, 0) < _SHARDED.get(difference.asked, 0)
    return difference.field == "cpu_offload" and difference.written == "none"


def warnings(framework: str, found: list[Difference]) -> tuple[str, ...]:
    """Return a sentence for every field that the files state otherwise."""
    return tuple(
        f"{framework} cannot say {field}={plain(asked)}: its files mean {field}={plain(written)}."
        for field, asked, written in found
    )


FINEGAUGE = "finegauge"  # whose run file can say every run
SKYPILOT = "skypilot"  # whose task starts whatever framework the run has
_WRITERS = {row.exports[0]: row for row in frameworks() if row.exports}
_ALIASES = {alias: row.exports[0] for row in frameworks() for alias in row.exports[1:]}
FRAMEWORKS = (*_WRITERS, SKYPILOT)  # to export to, FineGauge's own run file among them


class Written(NamedTuple):
    """What was written, and what it means."""

    paths: tuple[str, ...]  # the training file first
    warnings: tuple[str, ...]
    command: str  # starts the training, in the folder of the files
    run: Run  # as our readers read the files
    alongside: Alongside  # what a reader is given beside the training file


def write(
    run: Run,
    framework: str,
    folder: str | os.PathLike[str],
    *,
    offer: Offer | None = None,
    spot: bool = False,
    recipe: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Written:
    """Write `run` as the files of `framework` into `folder`, which is made where it is not there.

    Args:
        run: What to train.
        framework: A name of FRAMEWORKS, in any case.
        folder: Where the files go.
        offer: The instance to rent; with one, a SkyPilot task is written beside.
        spot: Whether it is rented at the spot price.
        recipe: The file that the run was read from: what a run does not know, such as the learning
            rate, is taken from it.
        overwrite: Whether files of the same names are replaced.

    Raises: InputError where the framework is not known, cannot say the plan, or files are there already.
    """
    name = known_name(framework)
    module = _framework_of(run) if name == SKYPILOT else name
    title, sheet, format_ = _sheet(module, run)
    found_there = reading.framework_of(recipe) if recipe is not None and format_ is not None else None
    if found_there is not None and format_ is not None:
        sheet = taken_from(Recipe(*found_there), sheet, format_)
    facts, written, found = _checked(title, sheet, run)
    files = _texts(sheet, run, facts)
    notes = (
        sheet.notes
        + _to_do(run, facts)
        + _names_no_data(format_, sheet, None if found_there else run.dataset)
    )
    if offer is not None or name == SKYPILOT:
        task = skypilot.task(run, sheet, offer, spot=spot)
        head = text.head(run, sheet, {}, main=False)
        files[skypilot.FILE] = text.rendered(skypilot.FILE, task, head)
        notes += skypilot.notes(run, offer)
    paths = _move(files, os.fspath(folder), overwrite=overwrite)
    launcher = os.path.join(folder, ACCELERATE)
    beside = Alongside(accelerate=launcher if launcher in paths else None)
    command = skypilot.COMMAND if name == SKYPILOT else sheet.command
    return Written(paths, warnings(title, found) + notes, command, written, beside)


def as_written(run: Run, framework: str) -> tuple[Run, tuple[Difference, ...]]:
    """Return what the files of `framework` would mean, and where that is not `run`; nothing is kept.

    Raises: InputError where the framework is not known, or cannot say the plan.
    """
    name = known_name(framework)
    title, sheet, _ = _sheet(_framework_of(run) if name == SKYPILOT else name, run)
    _, written, found = _checked(title, sheet, run)
    return written, tuple(found)


def known_name(framework: str) -> str:
    """Return the name of FRAMEWORKS that is meant.

    Raises: UnknownNameError naming its neighbours.
    """
    word = framework.strip().casefold().replace("_", "-").replace(" ", "-")
    word = _ALIASES.get(word, word)
    if word not in FRAMEWORKS:
        raise UnknownNameError("framework to export to", framework, known=[*FRAMEWORKS, *_ALIASES])
    return word


def own_framework(run: Run) -> str:
    """Return the framework whose file the run was read from; "" where none of them can be written."""
    word = run.framework.casefold().replace(" ", "-")
    word = _ALIASES.get(word, word)
    return word if word in _WRITERS and word != FINEGAUGE else ""


def _framework_of(run: Run) -> str:
    """Return the framework that a SkyPilot task starts."""
    return own_framework(run) or "trl"


def _sheet(name: str, run: Run) -> tuple[str, Sheet, Format | None]:
    """Return what messages call the framework, what its module makes of the run, and its table of keys."""
    row = _WRITERS[name]
    named, _, function = row.module.partition(":")
    module = import_module(f"finegauge.formats.{named}")
    make: Callable[[Run], Sheet] = getattr(module, function or "sheet")
    return row.name, make(run), getattr(module, "FORMAT", None)


def _texts(sheet: Sheet, run: Run, facts: Mapping[str, Any]) -> dict[str, str]:
    files = {sheet.file: text.rendered(sheet.file, sheet.keys, text.head(run, sheet, facts, main=True))}
    head = text.head(run, sheet, {}, main=False)
    return files | {name: text.rendered(name, keys, head) for name, keys in sheet.beside.items()}


def _checked(title: str, sheet: Sheet, run: Run) -> tuple[dict[str, Any], Run, list[Difference]]:
    """Return what `_read_back` finds, in a folder that is gone afterwards."""
    with TemporaryDirectory(prefix="finegauge-") as scratch:
        try:
            facts, written, found = _read_back(sheet, run, scratch)
        except FieldError as error:
            raise InputError(f"{title} cannot say this run: {error}") from None
    refuse_another_plan(title, found)
    return facts, written, found


def _read_back(sheet: Sheet, run: Run, scratch: str) -> tuple[dict[str, Any], Run, list[Difference]]:
    """Return the facts to carry in a comment, the run that the files mean with them, and the differences."""
    carried = (*FACTS, *TO_DO, *sheet.spoken)
    try:
        alone = _reread(sheet, run, {}, scratch)
        carried = tuple(found.field for found in differences(run, alone) if found.field in carried)
    except InputError:  # such as degrees that make no sense without the number of GPUs
        pass
    facts = {field: getattr(run, field) for field in carried if getattr(run, field) not in (None, "")}
    written = _reread(sheet, run, facts, scratch)
    return facts, written, differences(run, written)


def _reread(sheet: Sheet, run: Run, facts: Mapping[str, Any], scratch: str) -> Run:
    for name, content in _texts(sheet, run, facts).items():
        with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
            file.write(content)
    launcher = os.path.join(scratch, ACCELERATE) if ACCELERATE in sheet.beside else None
    return reading.describe(os.path.join(scratch, sheet.file), (), Alongside(accelerate=launcher))


def _names_no_data(format_: Format | None, sheet: Sheet, ours: str | None) -> tuple[str, ...]:
    """Return that the training file names no data set, or one that only our catalogue calls so."""
    from finegauge.catalogue.datasets import datasets

    if format_ is None:
        return ()
    if names_data(format_, sheet.keys):
        if ours not in datasets():
            return ()
        return (f"{ours} is FineGauge's name of a data set; name yours in {sheet.file}.",)
    return (f"No data set to train on is named; add yours to {sheet.file}.",)


def _to_do(run: Run, facts: Mapping[str, Any]) -> tuple[str, ...]:
    to_do = TO_DO
    if run.dataset is not None:
        to_do = to_do | {"num_samples": "cut the data set to as many"}
    return tuple(
        f"{field}={facts[field]} is no key of the file: {what}."
        for field, what in to_do.items()
        if field in facts
    )


def _move(files: Mapping[str, str], folder: str, *, overwrite: bool) -> tuple[str, ...]:
    """Put the files into `folder`, none before all are written; return their paths."""
    taken = [name for name in files if os.path.lexists(os.path.join(folder, name))]
    if taken and not overwrite:
        raise InputError(
            f"{shown(taken[0])} is in {shown(folder)} already; name another folder, or add --overwrite."
        )
    paths = [os.path.join(folder, name) for name in files]
    unfinished = [f"{path}.{os.getpid()}.tmp" for path in paths]
    try:
        os.makedirs(folder, exist_ok=True)
        for path, content in zip(unfinished, files.values(), strict=True):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        for half, path in zip(unfinished, paths, strict=True):
            os.replace(half, path)
    except OSError as error:
        for path in filter(os.path.exists, unfinished):
            os.remove(path)
        raise InputError(f"{shown(folder)} cannot be written to: {error.strerror}.") from None
    return tuple(paths)


class Recipe(NamedTuple):
    """The file that a run was read from."""

    format: Format
    keys: Mapping[str, Any]


def taken_from(recipe: Recipe, sheet: Sheet, target: Format) -> Sheet:
    """Return `sheet`, of the framework `target`, with what the recipe has beside the run's fields."""
    same = recipe.format.shares_keys_with(target)
    found = dict(_of_the_same(recipe) if same else _of_another(recipe, target))
    if same:
        found |= _data(recipe, target, sheet.keys)
    elif not names_data(target, sheet.keys):
        found |= _one_data_set(recipe, target)
    keys: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in sheet.keys.items()}
    found |= {key: recipe.keys[key] for key in _WHEN if same and key in recipe.keys and key in keys}
    for path, value in found.items():
        section, dot, key = path.partition(".")
        if not dot:
            keys[section] = value
        elif isinstance(keys.setdefault(section, {}), dict):
            keys[section][key] = value
    secrets = sorted(key for key in recipe.keys if _is_secret(key)) if same else []
    notes = sheet.notes
    if secrets:
        notes += (f"Not carried over, for they may be secrets: {', '.join(secrets[:8])}.",)
    return sheet._replace(keys=keys, notes=notes)


def names_data(format_: Format, keys: Mapping[str, Any]) -> bool:
    """Return whether the training file of a framework names the data that it trains on."""
    names = [key for key in format_.data_keys if not key.endswith(_OF_DATA)]
    return any(value_at(keys, key) not in (None, "", [], {}) for key in names)


def _of_the_same(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Return the known keys that no field is read from, "section.key" in sections."""
    read, known = recipe.format.keys, recipe.format.known
    sections = {key.partition(".")[0] for key in (*read, *known) if "." in key}
    for path, held in flattened(recipe.keys, sections):
        carried = (path in known or f"{path.partition('.')[0]}.*" in known) and path not in read
        if carried and not _is_secret(path) and not path.startswith("finegauge"):
            yield path, held


def _of_another(recipe: Recipe, target: Format) -> Iterator[tuple[str, Any]]:
    """Return what both frameworks have a key for, under the other's key."""
    for setting, key in recipe.format.lasting.items():
        value = value_at(recipe.keys, key)
        plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if plain and setting in target.lasting:
            yield target.lasting[setting], value


def _data(recipe: Recipe, target: Format, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what names the data, as the file of the same framework has it, where no other data is named."""
    found = {key: value_at(recipe.keys, key) for key in target.data_keys}
    if names_data(target, written):
        found = {key: one for key, one in found.items() if _paths(one) == _paths(value_at(written, key))}
    return {key: value for key, value in found.items() if value is not None}


def _paths(named: Any) -> list[Any]:
    """Return the data sets that a list of them names."""
    listed = named if isinstance(named, list) else [named]
    return [one.get("path") if isinstance(one, Mapping) else one for one in listed]


def _one_data_set(recipe: Recipe, target: Format) -> dict[str, Any]:
    """Return the data set under another framework's key, where the file names one of a hub, or a file."""
    if recipe.format.lists_data or target.lists_data:
        return {}
    for key in recipe.format.data_keys:
        named = value_at(recipe.keys, key)
        named = named[0] if isinstance(named, list) and len(named) == 1 else named
        named = named.get("path") if isinstance(named, Mapping) else named
        if isinstance(named, str) and named and not key.endswith("_component_"):
            plain, theirs = named.partition("#")[0], target.data_keys[0]
            shapes = {"datasets": [{"path": plain, "type": "chat_template"}], "dataset": [plain]}
            return {theirs: shapes.get(theirs, plain)}
    return {}


def _is_secret(key: str) -> bool:
    return _SECRET.search(key.casefold()) is not None
