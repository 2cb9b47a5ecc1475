"""Keys that frameworks on top of transformers' Trainer share: optimizer, precision, adapters, sharding, data.

Names are those of TrainingArguments (transformers 4.40 to 5.23), PEFT and bitsandbytes. A function that is
called `..._row` returns a row of a key table, for reading and for writing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegauge.documents import parse_yaml, read_text
from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, model_keys
from finegauge.formats.key_table import Reading, Row, key
from finegauge.formats.sheet import mapping_in, of_pattern, refuse, samples_of, targets, whole_number
from finegauge.records import NamedTuple
from finegauge.run.field import flag, names, number, version_numbers
from finegauge.run.rules import PAIRED, PROJECTING, TRAINABLE_EXTRAS, num_held_out
from finegauge.run.run import FIELDS, FROM_DEFAULT, Run

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LASTING = {
    name: name
    for name in (
        *("learning_rate", "lr_scheduler_type", "weight_decay", "warmup_steps", "max_grad_norm", "seed"),
        "output_dir",
    )
}
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # renamed in transformers 5.23
_ATTENTION_WORDS = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
_ATTENTION = {
    **dict.fromkeys(("sdpa", "sdp", "auto", "xformers", "torch"), "sdpa"),
    "true": "flash",
    "eager": "eager",
}
# Optimizer classes that a dotted name ends in, and modules of those that are written by it.
_CLASSES = {
    "lion_pytorch": "lion",
    **dict.fromkeys(("optimi_adamw", "adopt_adamw"), "adamw"),
    "pagedadamw": "paged_adamw",
    "pagedadamw8bit": "paged_adamw_8bit",
    **dict.fromkeys(("adamw8bit", "adam8bit", "ao_adamw_8bit"), "adamw_8bit"),
    "ao_adamw_4bit": "adamw_4bit",
    **dict.fromkeys(("fusedadam", "fused_adam", "distributed_fused_adam", "megatron_fused_adam"), "adamw"),
}
OPTIMIZER_CLASSES = {
    "adamw": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor",
    "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
    "paged_adamw": "bitsandbytes.optim.PagedAdamW",
    "paged_adamw_8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "lion": "bitsandbytes.optim.Lion",
    "lion_8bit": "bitsandbytes.optim.Lion8bit",
}
# What transformers calls its optimizers, where that is another name, and which it has not.
_OF_TRANSFORMERS = {
    **{name: f"{name}_32bit" for name in ("paged_adamw", "lion", "paged_lion", "paged_ademamix")},
    **{"rmsprop_8bit": "rmsprop_bnb_8bit", "adamw_4bit": "adamw_torch_4bit"},
}
NOT_OF_TRANSFORMERS = ("muon", "shampoo", "soap", "adam_mini")


class Adapters(NamedTuple):
    """The keys of LoRA adapters, and what the framework takes where they are not there."""

    keys: str  # of rank, alpha, dropout, targets, of modules that train whole beside them, and of DoRA
    defaults: tuple[Any, Any, float] = (None, None, 0.0)
    everything: str = "all-linear"  # what it calls all linear layers
    joined: bool = False  # targets are written as one line with commas
    all_unasked: bool = True  # adapts all linear layers where nothing names them, else as PEFT does

    @property
    def names(self) -> list[str]:
        """Return the keys, in order."""
        return self.keys.split()

    def read(self, reading: Reading) -> None:
        """State rank, alpha, dropout, targets and what trains beside the adapters."""
        ranked, (targets, extra, *dora) = self.names[:3], self.names[3:]
        read_ranks(reading, ranked, self.defaults)
        for name in filter(reading.flag, dora):
            reading.set("adapter", "dora", name)
        usual = "all-linear" if self.all_unasked else model_keys.peft_choice(reading)
        asked = reading.get(targets) or ([] if reading.stated(*model_keys.PARAMETERS) else usual)
        if isinstance(asked, str) and (meant := of_pattern(asked)):
            reading.warn(f"{targets} is a pattern: taken as {', '.join(meant)} wherever these are.")
            asked = meant
        if isinstance(asked, list):  # of a shell: "q_proj", "v_proj"
            asked = [str(one).strip(" ,") for one in asked]
        reading.set("lora_targets", asked, targets)
        model_keys.read_expert_targets(reading)
        read_extra(reading, extra)

    def written(self, run: Run) -> dict[str, Any]:
        """Return the keys of the adapters of a run; none where it has none."""
        if not run.trains_adapters:
            return {}
        adapted: Any = targets(run)
        if adapted == ("all-linear",) and self.everything:
            adapted = self.everything
        else:
            adapted = ",".join(adapted) if self.joined else list(adapted)
        values = *ranks(run), adapted, saved_modules(run), True if run.adapter == "dora" else None
        return dict(zip(self.names, values, strict=False))  # some have no key of DoRA


def read_ranks(reading: Reading, keys: Sequence[str], defaults: tuple[Any, Any, float]) -> None:
    """Read rank, alpha and dropout, in this order."""
    for name, field, default in zip(keys, ("lora_rank", "lora_alpha", "lora_dropout"), defaults, strict=True):
        reading.take(field, name, default)


def ranks(run: Run) -> tuple[int, int | float, float]:
    """Return rank, alpha and dropout as they are written."""
    return run.lora_rank, whole_number(run.lora_alpha), run.lora_dropout


def read_extra(reading: Reading, key: str) -> None:
    """Read which whole modules train beside the adapters."""
    saved = names(key, reading.get(key) or ())
    extra = ["norms" if name.endswith("norm") else name for name in saved]
    reading.set("trainable_extra", [n for n in dict.fromkeys(extra) if n in TRAINABLE_EXTRAS], key)


def saved_modules(run: Run) -> list[str] | None:
    """Return the modules that train whole beside adapters, by the ends of their names."""
    return [{"norms": "norm"}.get(name, name) for name in run.trainable_extra] or None


def is_quantized_copy(reading: Reading) -> bool:
    """Return whether the model's repository holds its weights in 4 bits, as those of Unsloth do."""
    return str(reading.fields.get("model", "")).lower().endswith("-bnb-4bit")


def bits_of(reading: Reading, key: str) -> int:
    """Return into how many bits weights are quantised.

    Raises: FieldError for neither 4 nor 8.
    """
    name = key.rpartition(".")[2]
    bits = reading.whole(key, most=64)
    if bits not in (4, 8):
        raise FieldError(f"{name}={bits} is not supported; use 4 (NF4) or 8.")
    return bits


def bitsandbytes(*, eight: bool, double: bool) -> str:
    """Return the format of weights that bitsandbytes quantises."""
    return "int8" if eight else "nf4_dq" if double else "nf4"


def dtype_word(dtype: str) -> str:
    """Return PyTorch's name of a number format."""
    return DTYPES.get(dtype, dtype)


def packages(run: Run, *names: str) -> str:
    """Return what pip has to install beside the framework's own packages."""
    words = [*names]
    words += ["bitsandbytes"] if run.method == "qlora" or "8bit" in run.optimizer else []
    words += ["liger-kernel"] if "liger" in run.kernels else []
    words += ["deepspeed"] if launcher_files.uses_deepspeed(run) else []
    return " ".join(words)


def optimizer_row(name: str, default: str, words: Mapping[str, str] | None = None) -> Row:
    """Return the row of the optimizer; `words` are the framework's own for some names of transformers."""
    return Row(
        name,
        lambda reading: read_optimizer(reading, name, default),
        lambda run: optimizer(run, name, words or {}),
    )


def optimizer(run: Run, name: str, theirs: Mapping[str, str] = {}) -> dict[str, Any]:
    """Return the key of the optimizer by transformers' names, or `theirs` for some of these."""
    if run.optimizer in NOT_OF_TRANSFORMERS and run.optimizer not in theirs:
        raise refuse("transformers' Trainer", "optimizer", run.optimizer, "its 'optim' has no such name.")
    written = _OF_TRANSFORMERS.get(run.optimizer, run.optimizer)
    if run.optimizer.startswith(PROJECTING) and run.optimizer_implementation == "in_backward":
        written += "_layerwise"
    if run.optimizer == "adamw":
        written = "adamw_torch_fused" if run.optimizer_implementation == "fused" else "adamw_torch"
    rank = {"optim_args": f"rank={run.optimizer_rank}"} if run.optimizer_rank and "." not in name else {}
    return {name: theirs.get(written, written), **rank}


def optimizer_class(run: Run, framework: str) -> str:
    """Return the dotted name of the class of a run's optimizer.

    Raises: InputError for one whose class is not known.
    """
    if run.optimizer not in OPTIMIZER_CLASSES:
        raise refuse(framework, "optimizer", run.optimizer, "of its class no name is known; use adamw.")
    return OPTIMIZER_CLASSES[run.optimizer]


_ARGUMENTS = ("optim_args", "optim.extra_kwargs")  # of transformers; of litgpt for a time


def read_optimizer(reading: Reading, key: str, default: str) -> None:
    """Read the optimizer; one that is not supported counts as AdamW, and that is said."""
    older = not reading.stated(key) and reading.flag("adafactor")  # transformers' own switch, before 5
    optimizer = "adafactor" if older else reading.text(key, default).rpartition(".")[2]
    optimizer, layerwise, _ = optimizer.partition("_layerwise")
    if layerwise:
        reading.set("optimizer_implementation", "in_backward", key)
    projects, told = optimizer.startswith(PROJECTING), str([*map(reading.get, _ARGUMENTS)])[:1000]
    if projects and (rank := re.search(r"\brank\s*=\s*(\d{1,6})", told)):
        reading.set("optimizer_rank", int(rank[1]), *_ARGUMENTS)
    optimizer = _CLASSES.get(optimizer, optimizer)
    try:
        FIELDS["optimizer"]("optimizer", optimizer)
    except FieldError:
        reading.warn(f"{key}={shown(optimizer)} is not modelled: it is taken as AdamW with 32-bit states.")
        optimizer = "adamw"
    reading.set("optimizer", optimizer, "adafactor" if older else key)
    if optimizer in ("adamw_torch", "adamw_torch_fused"):
        implementation = "fused" if optimizer == "adamw_torch_fused" else "foreach"
        reading.set("optimizer_implementation", implementation, key)


def attention_row(*keys: str, words: Mapping[str, str] = _ATTENTION_WORDS) -> Row:
    """Return the row of the attention kernel, under the first of `keys`; `words` by our names."""
    return Row(
        " ".join(keys),
        lambda reading: read_attention(reading, *keys),
        lambda run: {keys[0]: words[run.attention]},
    )


def read_attention(reading: Reading, *keys: str) -> None:
    """Read the attention kernel that the first of `keys` names."""
    key = reading.which(*keys)
    inside = mapping_in(reading.get("model_init_kwargs")).get("attn_implementation", "sdpa")
    word = reading.text(key, str(inside)).replace("-", "_")
    kind = "flash" if "flash" in word or word in ("flex_attention", "flex", "sage") else _ATTENTION.get(word)
    reading.set("attention", kind or word, key)


def read_precision(reading: Reading, *, bf16_default: bool) -> None:
    """Read the arithmetic's format from `bf16` and `fp16`; with `bf16_default`, bf16 where neither is stated.

    Raises: FieldError where both are true.
    """
    fp16 = reading.flag("fp16")
    stated = reading.get("bf16")
    bf16 = (bf16_default and not fp16) if stated in (None, "auto") else flag("bf16", stated)
    if bf16 and fp16:
        raise FieldError("bf16 and fp16 are both true; keep one.")
    if bf16 and stated == "auto":
        reading.set_by_gpu("autocast")
        return
    reading.set("autocast", "bf16" if bf16 else "fp16" if fp16 else "none", "bf16", "fp16")


def precision(run: Run) -> dict[str, Any]:
    """Return the arithmetic's format; both keys, for the frameworks' defaults differ."""
    return {"bf16": run.autocast == "bf16"} | ({"fp16": True} if run.autocast == "fp16" else {})


def checkpointing_row(moves: str = "", *, default: bool, reentrant: bool) -> Row:
    """Return the row of gradient checkpointing where the framework's defaults hold for every version."""
    return Row(
        f"{CHECKPOINTING_KEYS} {moves}",
        lambda reading: read_checkpointing(reading, moves, default=default, reentrant=reentrant),
        checkpointing,
    )


CHECKPOINTING_KEYS = " ".join(f"{name} {name}_kwargs" for name in _CHECKPOINTING)


def read_checkpointing(reading: Reading, moves: str = "", *, default: bool, reentrant: bool) -> None:
    """Read gradient checkpointing, words for offloading included, or the key `moves` that asks for it."""
    key = reading.which(*_CHECKPOINTING)
    word = reading.text(key, str(default))
    if key in FIELDS and word in FIELDS[key].options:  # an override: the key bears our field's name
        kind = word
    else:
        offloads = word in ("unsloth", "offload", "offload_disk")
        kind = "offload" if offloads else "full" if flag(key, word) else "none"
    if moves and reading.flag(moves):  # without checkpointing, too, where nothing is computed again
        kind, key = "offload", moves
    reading.set("activation_checkpointing", kind, key)
    named = reading.which(*(f"{name}_kwargs" for name in _CHECKPOINTING))
    stated = mapping_in(reading.get(named)).get("use_reentrant")
    if stated is not None or kind != "none":
        value = reentrant if stated is None else flag("use_reentrant", stated)
        reading.set("checkpointing_reentrant", value, named)


def checkpointing(run: Run) -> dict[str, Any]:
    """Return gradient checkpointing and its kind; offloading is each framework's own."""
    if run.activation_checkpointing == "none":
        return {"gradient_checkpointing": False}
    return {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": run.checkpointing_reentrant},
    }


def _read_evaluation(reading: Reading) -> None:
    """Read how often the run evaluates; samples that nobody tells the number of are said."""
    named = reading.which("eval_strategy", "evaluation_strategy")
    every = reading.get("eval_steps") if reading.text(named, "steps") == "steps" else None
    every = every or (reading.get("logging_steps", 500) if reading.text(named) == "steps" else None)
    if every is not None:
        reading.set("eval_steps", every, "eval_steps", named)
    ends = any(reading.fields.get(field) for field in ("max_steps", "num_samples", "dataset"))
    told = reading.fields.get("eval_samples") or reading.replaces("eval_samples")
    told = told or "eval_samples" in reading.block or reading.text(named, "no") in ("no", "none", "false")
    if ends and not told:
        reading.warn(
            f"{named} asks for evaluations on samples whose number is not told: their time is not "
            "counted; eval_samples=N counts it."
        )


def _evaluation(run: Run) -> dict[str, Any]:
    """Return how often a run evaluates, where it does."""
    kind = "epoch" if run.eval_steps is None else "steps"
    return {"eval_strategy": kind, "eval_steps": run.eval_steps} if run.eval_samples else {}


def _read_duration(reading: Reading) -> None:
    steps = number(-1, 1e10)("max_steps", reading.get("max_steps", -1))
    if steps > 0:
        reading.set("max_steps", int(steps), "max_steps")
    never = reading.text("save_steps") == "0" and reading.text("save_strategy", "steps") in ("steps", "best")
    saves = {"epoch": 1.0, "no": 0.0, "false": 0.0}.get("no" if never else reading.text("save_strategy"))
    if saves is not None:
        reading.set("saves_per_epoch", saves, "save_strategy", "save_steps")
    elif reading.stated("save_steps"):
        reading.take("save_steps", "save_steps")
    for name, field in (("save_total_limit", "saves_kept"), *EVALUATED.items()):
        if reading.stated(name) and not reading.text(name).startswith(("0", "-")):  # as without a limit
            reading.take(field, name)
    if reading.stated("save_only_model"):
        reading.set("save_optimizer", not reading.flag("save_only_model"), "save_only_model")


EVALUATED = {
    "per_device_eval_batch_size": "eval_batch_size", "eval_accumulation_steps": "eval_accumulation_steps",
}  # fmt: skip


def _duration(run: Run) -> dict[str, Any]:
    stated = run.origins["saves_per_epoch"] != FROM_DEFAULT
    saves = {0.0: "no", 1.0: "epoch"}.get(run.saves_per_epoch) if stated else None
    return {
        "max_steps": run.max_steps,
        "save_strategy": saves,
        "save_total_limit": run.saves_kept,
        "save_only_model": None if run.save_optimizer else True,
        **{name: getattr(run, field) for name, field in EVALUATED.items()},
    }


def epochs_row(name: str = "num_train_epochs", default: float = 3.0) -> Row:
    """Return the row of the epochs."""
    return key(name, "epochs", default, write=lambda run: float(run.epochs))


def batch_rows(micro_batch_size: int) -> tuple[Row, ...]:
    """Return the rows of the micro-batch, with the framework's default, and of the accumulation."""
    return (
        key("per_device_train_batch_size", "micro_batch_size", micro_batch_size),
        key("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    )


def liger_row() -> Row:
    """Return the row of the fused kernels; without them the loss is of whole logits."""
    return Row("use_liger_kernel use_liger", lambda reading: read_liger(reading, "full_logits"), liger)


def read_liger(reading: Reading, loss: str, *loss_keys: str, fuses_loss: bool = True) -> None:
    """Read the fused kernels and, where they do not say, how the loss is computed."""
    on = reading.flag(key := reading.which("use_liger_kernel", "use_liger"))  # TRL's until 0.16
    reading.set("kernels", ["liger"] if on else [], key)
    reading.set("loss", "fused" if on and fuses_loss else loss, key, *loss_keys)


def liger(run: Run) -> dict[str, Any]:
    """Return the fused kernels, where they are on."""
    return {"use_liger_kernel": True if "liger" in run.kernels else None}


def _read_grouping(reading: Reading) -> None:
    keys = ("group_by_length", "train_sampling_strategy")
    grouped = reading.flag(keys[0]) or reading.text(keys[1]) == "group_by_length"
    if grouped and reading.fields.get("packing"):
        reading.ignored(keys, "packing fills every sequence")
        grouped = False
    reading.set("group_by_length", grouped, *keys)


def _grouping(run: Run) -> dict[str, Any]:
    if not run.group_by_length:
        return {}
    if version_numbers(run.transformers_version) < (5, 0):
        return {"group_by_length": True}
    return {"train_sampling_strategy": "group_by_length"}


def read_sharding(reading: Reading, *, by_config: bool = False) -> None:
    """Read DeepSpeed's or FSDP's sharding, one of them; `by_config`: FSDP's options alone ask for it."""
    fsdp = None if reading.get("fsdp") == [] or reading.text("fsdp") == "false" else reading.get("fsdp")
    for field, degree in launcher_files.degrees_of(reading.keys).items():
        reading.set(field, degree, "parallelism_config")
    if reading.get("deepspeed") and fsdp:
        raise FieldError("deepspeed and fsdp are both stated; keep one.")
    if reading.get("deepspeed"):
        _read_deepspeed(reading)
    elif fsdp or (by_config and reading.get("fsdp_config")):
        words = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp or "")
        told = reading.get("fsdp_config")
        path = None if mapping_in(told) else launcher_files.find_inside(str(told), reading.file)[0]
        section = mapping_in(parse_yaml(read_text(path), str(told)) if path else told)
        if isinstance(told, str) and not section:
            reading.warn(f"fsdp_config: {shown(told)} was not found; FSDP is taken as it is unasked.")
        fields = {"cpu_offload": "none", **launcher_files.fsdp_fields(section, words.lower().split())}
        for field, value in fields.items():
            reading.set(field, value, "fsdp", "fsdp_config")
    else:
        reading.ignored(("fsdp_config",), "fsdp is not stated")


def _read_deepspeed(reading: Reading) -> None:
    """Read the file that `deepspeed` names, and hold its batch against the training file's."""
    keys = read_zero(reading, "deepspeed")
    told = launcher_files.deepspeed_fields(keys) if keys is not None else {}
    by_engine = reading.fields.get("micro_batch_size") == "auto"  # which runs the loop of a script
    ranks = reading.data_ranks(reading.launched_gpus)
    told = launcher_files.batch_by_engine(keys or {}, told, ranks) | told if by_engine else told
    for field, value in told.items():
        known = reading.fields.get(field)
        if field in launcher_files.BATCH and str(known) != str(value) and not by_engine:
            raise FieldError(
                f"{field}={known} of {reading.file_name} contradicts {field}={value} of its DeepSpeed file; "
                "make them equal, or set the latter to auto."
            )
        if field in ("tensor_parallel", "optimizer") or by_engine:
            reading.set(field, value, "deepspeed")
    launcher_files.refuse_other_batch(keys or {}, reading.fields, ranks)
    said = "" if by_engine else launcher_files.other_precision(keys or {}, reading.fields)
    reading.warnings += [said] if said else []


def read_zero(reading: Reading, key: str, *beside: str) -> Mapping[str, Any] | None:
    """Read what the file of `key` shards and offloads (`beside` says so too); return its keys, if here."""
    found = launcher_files.zero_of(reading.get(key, ""), reading.file)
    reading.warnings += [found.warning] if found.warning else []
    for field, value in found.fields.items():
        reading.set(field, value, key, *(beside if field == "sharding" else ()))
    return found.keys


def read_dataset(
    reading: Reading, value: Any, *keys: str, num_samples: int | None = None, split: str = ""
) -> None:
    """Read the data set: one of the catalogue, else every sequence is taken as long as the cut-off."""
    named = names(keys[0], value or ())
    one = named[0] if len(named) == 1 else ""
    known = (in_catalogue(one) or _own_file(reading, one, keys)) if one else None
    if named and known is None and not reading.replaces("dataset"):
        reading.warn(unknown_lengths(named))
    reading.set("dataset", known, *keys)
    stated = num_samples or samples_of(split, total := in_all(named))
    reading.set("num_samples", stated or (None if known else total), *keys)


def unknown_lengths(named: Sequence[str], cut_off: str = "seq_len") -> str:
    """Return the sentence about data sets that the catalogue lacks; of a path it shows the last part."""
    path = re.fullmatch(r"[\w.-]+/[\w.-]+|[^/]+", named[0]) is None
    which = shown(named[0].rstrip("/").rpartition("/")[2] if path else named[0], 40)
    which += f" and {len(named) - 1} more" if len(named) > 1 else ""
    return f"The lengths of {which} are not known: every sequence counts as {cut_off} long."


def dataset_row(
    key: str, write: Callable[[Run], Mapping[str, Any]] | None = None, *, beside: str = ""
) -> Row:
    """Return the row of the key that names the data sets; `beside`: another that is not read."""
    return Row(f"{key} {beside}", lambda reading: read_dataset(reading, reading.get(key), key), write)


def packing_row(packing: str, padding_free: str) -> Row:
    """Return the row of packing, which keeps samples apart, and of joining samples without padding."""

    def read(reading: Reading) -> None:
        packed, free = reading.flag(packing), reading.flag(padding_free)
        if reading.fields.get("phase") in PAIRED and (packed or free):
            reading.warn(f"{packing} or {padding_free} of pairs is not modelled: they are taken as padded.")
            packed = free = False
        reading.set("packing", packed, packing)
        reading.set("padding", "free" if packed or free else "longest", packing, padding_free)

    def write(run: Run) -> dict[str, Any]:
        free = run.padding == "free" and not run.packing
        return {packing: run.packing, padding_free: True if free else None}

    return Row(f"{packing} {padding_free}", read, write)


def read_validation(
    reading: Reading, size: Any, *keys: str, total: int | None = None, evaluates: bool = True
) -> None:
    """Read what is held out of training: a share below 1, a number of samples from 1 on.

    Args:
        reading: Of the file.
        size: As the file has it; None or 0 for nothing.
        keys: Who states it, the framework's own first.
        total: The samples that there are, where known.
        evaluates: Whether the samples held out are evaluated on.
    """
    held_out = number(0, 1e10)(keys[0], size or 0)
    if held_out >= 1 and not total:
        reading.warn(f"{keys[0]}={held_out:g} samples of a data set of unknown size: none is held out.")
        return
    fraction = held_out if held_out < 1 else min(held_out, (total or 1) - 1) / (total or 1)
    if fraction:
        reading.set("validation_fraction", fraction, *keys)
    if fraction and total and evaluates:
        reading.set("eval_samples", num_held_out(total, fraction), *keys)


def _own_file(reading: Reading, name: str, keys: tuple[str, ...]) -> str | None:
    """Return `name` if it is a file of texts that the command line names in place of the file's data set."""
    from finegauge.catalogue.datasets import holds_texts

    stated = any(key in reading.overrides for key in keys)
    return name if stated and holds_texts(name, has_tokenizer=False) else None


def in_catalogue(name: str) -> str | None:
    """Return `name` if the catalogue has the lengths of that data set; no file is opened."""
    from finegauge.catalogue.datasets import described

    return name if (found := described(name)) is not None and found.lengths else None


def in_all(named: Sequence[str]) -> int | None:
    """Return how many samples these data sets have together, where the catalogue knows it of each."""
    from finegauge.catalogue.datasets import samples_in

    counts = list(map(samples_in, named))
    return sum(filter(None, counts)) if named and all(counts) else None


def _read_fp8(reading: Reading) -> None:
    on = reading.flag("fp8")
    reading.set("fp8", on, "fp8")
    if on:
        engine = "delayed" if reading.text("fp8_backend", "auto") == "te" else "tensorwise"
        reading.set("fp8_recipe", engine, "fp8_backend")
        gathers = "fp8_enable_fsdp_float8_all_gather"
        reading.set("fp8_all_gather", reading.flag(gathers), gathers)


FP8 = Row(
    "fp8 fp8_backend fp8_enable_fsdp_float8_all_gather",  # accelerate's, by torchao's float8 unless told
    _read_fp8,
    lambda run: {
        "fp8": run.fp8 or None,
        "fp8_enable_fsdp_float8_all_gather": (run.fp8 and run.fp8_all_gather) or None,
    },
)
COMPILE = Row(  # a backend or a mode asks for it, too
    "torch_compile torch_compile_backend torch_compile_mode",
    lambda reading: reading.set(
        "compile",
        reading.flag("torch_compile") or reading.stated("torch_compile_backend", "torch_compile_mode"),
        *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    ),
    lambda run: {"torch_compile": run.compile or None},
)
DURATION = Row(
    "max_steps save_strategy save_steps save_total_limit save_only_model per_device_eval_batch_size "
    "eval_accumulation_steps",
    _read_duration,
    _duration,
)
SHARDING = Row("deepspeed fsdp fsdp_config parallelism_config", read_sharding)
GROUPING = Row("group_by_length train_sampling_strategy", _read_grouping, _grouping)
EVALUATION = Row("eval_strategy evaluation_strategy eval_steps", _read_evaluation, _evaluation)
EVALUATION_OF_PART = EVALUATION._replace(  # of what is held out of training, without which it is refused
    write=lambda run: _evaluation(run) if run.validation_fraction else {}
)
