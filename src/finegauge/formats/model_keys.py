"""Keys about the model itself: the head that it is given, adapters that are not LoRA, what is frozen, images.

What tells the head is a class of transformers, or the name of an example: transformers' examples
(`run_glue.py`, `run_mlm.py`, ...) have options of their own beside TrainingArguments; what they do unasked is
read from examples/pytorch of 5.23.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from finegauge.catalogue.frameworks import framework_of
from finegauge.errors import FieldError, FineGaugeError, did_you_mean, shown
from finegauge.formats.key_table import Reading, Row, key
from finegauge.formats.sheet import known_model
from finegauge.run.field import names, number
from finegauge.run.options import REWRITTEN
from finegauge.run.phases import has_images
from finegauge.run.rules import OFF_PROJECTIONS
from finegauge.run.run import Run

# PEFT's adapters, and under which keys of its configuration their rank and size stand.
PEFT_TYPES = {
    **{"LORA": ("lora", "r", ""), "ADALORA": ("adalora", "init_r", ""), "VERA": ("vera", "r", "")},
    **{"IA3": ("ia3", "", ""), "OFT": ("oft", "", "oft_block_size"), "LOHA": ("loha", "r", "")},
    **{"BOFT": ("boft", "", "boft_block_size"), "LOKR": ("lokr", "r", ""), "MISS": ("miss", "r", "")},
    **{"BONE": ("miss", "r", ""), "FOURIERFT": ("fourierft", "", "n_frequency")},
    **{"RANDLORA": ("randlora", "r", ""), "LN_TUNING": ("ln_tuning", "", "")},
    **{"PROMPT_TUNING": ("prompt_tuning", "", "num_virtual_tokens")},
    **{"PREFIX_TUNING": ("prefix_tuning", "", "num_virtual_tokens")},
    **{"P_TUNING": ("p_tuning", "", "num_virtual_tokens")},
    "TRAINABLE_TOKENS": ("trainable_tokens", "", "token_indices"),
}
_UNLIKE = {  # keys that change what is counted, with what PEFT has unasked
    **{"decompose_both": False, "decompose_factor": -1, "block_share": False, "coft": False},
    **{"boft_n_butterfly_factor": 1, "boft_block_num": 0, "num_transformer_submodules": 1},
}
# Endings of the classes: (Auto)ModelFor..., BertFor...
CLASSES = {
    "SequenceClassification": "sequence_classification",
    "TokenClassification": "token_classification",
    "QuestionAnswering": "question_answering",
    "MaskedLM": "masked_lm",
    "Seq2SeqLM": "seq2seq_lm",
    "SpeechSeq2Seq": "seq2seq_lm",
}
_CLASS = rf"\w+For({'|'.join(CLASSES)})"
_WRITES = "(M?T5|Bart|Whisper)ForConditionalGeneration"
# Of the examples: the task, and the cut-off where none is given.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    r"run_(glue|xnli)(_no_trainer)?": {"auto_class": "sequence_classification", "max_seq_length": 128},
    r"run_classification": {"auto_class": "sequence_classification", "max_seq_length": 128},
    r"run_ner": {"auto_class": "token_classification"},
    r"run_qa": {"auto_class": "question_answering", "max_seq_length": 384},
    r"run_mlm": {"auto_class": "masked_lm"},
    r"run_(summarization|translation|speech_recognition_seq2seq)": {"auto_class": "seq2seq_lm"},
}
_LABELS = {"mnli": 3, "stsb": 1}  # of GLUE's tasks; two of the others
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PARAMETERS = ("target_parameters", "lora_target_parameters")
FROZEN = ("freeze_language_model", "freeze_vision_tower", "freeze_projector")
PIXELS = ("image_min_pixels", "image_max_pixels")
# Which layers PEFT adapts where nobody says, for the families named; others: query and value.
_PEFT_CHOICE = (
    (("gpt_neox", "bloom", "falcon"), ("query_key_value",)),
    (("gpt2", "gpt_bigcode"), ("c_attn",)),
    (("phi3",), ("qkv_proj",)),
    (("qwen", "internlm2", "baichuan"), ("all-linear",)),  # of which it has none: scripts name theirs
)


def peft_keys(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rank, size and targets of PEFT's configuration of a `kind` that is not LoRA.

    Raises: FieldError for a type, or an option of it, that is not supported.
    """
    if kind not in PEFT_TYPES:
        hint = did_you_mean(kind, PEFT_TYPES)
        raise FieldError(
            f"peft_type={shown(kind)} is not supported.{hint} These are: {', '.join(PEFT_TYPES)}."
        )
    adapter, rank, size = PEFT_TYPES[kind]
    for name, usual in _UNLIKE.items():
        if config.get(name, usual) not in (usual, None):
            raise FieldError(f"{name}={shown(str(config[name]))} of peft_type={kind} is not supported.")
    targets = config.get("target_modules")
    targets = sorted(targets) if isinstance(targets, set) else targets
    found: dict[str, Any] = {"adapter": adapter, "lora_targets": targets}
    found["lora_rank"] = config.get(rank) if rank else None
    value = config.get(size) if size else None
    found["adapter_size"] = len(value) if isinstance(value, list) else value or None
    hidden = config.get("encoder_hidden_size")
    if adapter == "p_tuning" or (adapter == "prefix_tuning" and config.get("prefix_projection")):
        found["adapter_hidden_size"] = hidden
    if adapter in OFF_PROJECTIONS:
        found.pop("lora_targets")
    return {name: value for name, value in found.items() if value is not None}


def class_of(name: str) -> str:
    """Return the task of a class of transformers that has another head than a causal one; "" of others."""
    found = re.fullmatch(_CLASS, name)
    return CLASSES[found[1]] if found else "seq2seq_lm" if re.fullmatch(_WRITES, name) else ""


def _read_task(reading: Reading) -> None:
    named = reading.text("auto_class")
    if not named or reading.fields.get("phase") != "sft":
        return
    reading.set("task", named, "auto_class")
    if named == "seq2seq_lm":
        lengths = "max_source_length", "max_target_length"
        if reading.stated(*lengths):
            for field, key, usual in zip(("seq_len", "target_seq_len"), lengths, (1024, 128), strict=True):
                reading.take(field, key, usual)
        return
    example = str(reading.get("task_name") or "")
    labels = reading.get("num_labels", _LABELS.get(example) if example else None)
    if labels is not None:
        reading.set("num_labels", labels, "num_labels", "task_name")
    elif named.endswith("classification"):
        reading.warn("How many labels there are is not stated: taken as 2; num_labels=… says another.")
    if (
        named == "masked_lm"
        and not reading.flag("line_by_line")
        and reading.stated("line_by_line", "mlm_probability")
    ):
        reading.set("packing", True, "line_by_line")  # texts are joined and cut into blocks


TASK = Row(
    "auto_class num_labels task_name line_by_line mlm_probability max_source_length max_target_length",
    _read_task,
)


def freezing_row(keys: str) -> Row:
    """Return the row of three keys: of the language model, which trains unless told, tower and projector."""
    names = keys.split()

    def read(reading: Reading) -> None:
        for name, field in zip(names, FROZEN, strict=True):
            if reading.stated(name):
                reading.set(field, reading.flag(name), name)

    def write(run: Run) -> dict[str, Any]:
        values = [getattr(run, field) for field in FROZEN]
        unlike = zip(names, values, (False, True, True), strict=True)
        return {name: value for name, value, own in unlike if value != own} if has_tower(run) else {}

    return Row(keys, read, write)


def warn_of_images(reading: Reading, key: str) -> None:
    """Warn of a key of images where nobody tells how many a sample has."""
    if not (reading.replaces("images_per_sample") or "images_per_sample" in reading.block):
        reading.warn(
            f"{key} is of images, whose number is not told: none is counted; images_per_sample=1 "
            "counts one a sample."
        )


def pixels_row(keys: str, *, at_most: int | None = None) -> Row:
    """Return the row of the keys of the fewest and most pixels, the latter `at_most` where unstated."""
    names = keys.split()

    def read(reading: Reading) -> None:
        for name, field in zip(names, PIXELS, strict=True):
            reading.take(field, name, at_most if field == PIXELS[1] else None)
        if reading.stated(*names):
            warn_of_images(reading, reading.which(*names))

    def write(run: Run) -> dict[str, Any]:
        shown = names if has_images(run) else ()
        return {name: getattr(run, field) for name, field in zip(shown, PIXELS, strict=False)}

    return Row(keys, read, write)


def has_tower(run: Run) -> bool:
    """Return whether what is frozen of a vision tower matters: weights of one train, or adapters in one."""
    if run.trains_adapters and not has_images(run):
        return False
    try:
        return "vision_config" in run.config
    except FineGaugeError:
        return False


def _read_workers(reading: Reading) -> None:
    if reading.launched_gpus is None and reading.flag("use_ray", default=True):
        reading.take("num_gpus", "ray_num_workers")


RAY = Row("ray_num_workers use_ray", _read_workers)


def experts_row(write: Callable[[Run], Any] | None = None) -> Row:
    """Return the row of transformers' paths of experts; kernels that group tokens count as grouped_mm."""

    def read(reading: Reading) -> None:
        word = reading.text("experts_implementation")
        if word in ("scattermoe", "sonicmoe", "deepgemm"):
            reading.warn(f"experts_implementation={shown(word)} is taken as grouped_mm.")
            word = "grouped_mm"
        reading.set("experts_implementation", word or None, "experts_implementation")

    return key("experts_implementation", "experts_implementation", read=read, write=write, writes=bool(write))


def read_expert_targets(reading: Reading) -> None:
    """Read adapters on weights that transformers 5 holds as parameters: experts, their router.

    PEFT gives these no dropout and refuses it: a file that ran with an older one is taken without, which
    changes nothing but a mask.
    """
    key = reading.which(*PARAMETERS)
    bare = [name.removesuffix(".weight").rpartition(".")[2] for name in names(key, reading.get(key) or ())]
    known = known_model(str(reading.fields["model"]))
    config: Mapping[str, Any] = known.config if known else {}
    targets = _layers_there(reading, names("lora_targets", reading.fields["lora_targets"]), config, bare)
    every = "all-linear" in targets
    if bare and every:
        reading.warn(f"{key} beside all linear layers is not modelled: the run is taken as without it.")
    elif bare:
        reading.set("lora_targets", list(dict.fromkeys([*targets, *bare])), key)
    rewritten = REWRITTEN.get(str(config.get("model_type")), {})
    lists = framework_of(reading.format.name).lists_linears
    hit = bare or (rewritten if every and not lists else rewritten.keys() & set(targets))
    dropout = number(0, 1)("lora_dropout", reading.fields.get("lora_dropout") or 0)
    if hit and dropout and not any(map(reading.replaces, ("lora_dropout", "transformers_version"))):
        reading.fields["lora_dropout"] = 0.0
        reading.warn(
            f"lora_dropout={dropout:g} is taken as 0: transformers 5 holds experts as parameters, whose "
            "adapters PEFT gives no dropout; transformers_version=4.57 has them as layers."
        )


def _layers_there(
    reading: Reading, targets: list[str], config: Mapping[str, Any], bare: list[str]
) -> list[str]:
    """Return the targets that a model of this config has as layers, and warn of what is not counted.

    Experts that are parameters by the name of a dense model's layer have no adapters of it.
    """
    framework = framework_of(reading.format.name)
    if any(re.search(r"\.\d+\.", name) for name in targets):
        reading.warn("Targets name single layers: their adapters are taken to be on all layers.")
    beside = {"lm_head", "embed_tokens"} & set(targets)
    if beside and framework.name != "Unsloth":  # which trains them whole
        reading.warn(f"Adapters on {', '.join(sorted(beside))} are not modelled: the run is as without them.")
    kind = str(config.get("model_type"))
    if kind in framework.linear_experts or framework.own_models or not any(map(config.get, _EXPERTS)):
        return targets
    alone = kind == "gpt_oss" or "w2" in REWRITTEN.get(kind, {})  # without any layer of a dense MLP
    parameters = {"gate_up_proj", *(("down_proj",) if alone else ())} - {*bare}
    found = [name for name in targets if name not in parameters]
    if targets and not (found or bare):
        raise FieldError(f"{', '.join(targets)} are no layers of a {kind} model; give target_parameters.")
    reading.fields["lora_targets"] = found
    return found


def peft_choice(reading: Reading) -> tuple[str, ...]:
    """Return the layers that PEFT adapts by itself in the model's family."""
    known = known_model(str(reading.fields["model"]))
    family = str(known.config.get("model_type", "")) if known else ""
    return next((targets for families, targets in _PEFT_CHOICE if family in families), ("q_proj", "v_proj"))
