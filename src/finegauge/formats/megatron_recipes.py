"""Recipes of NeMo 2 and Megatron-Bridge as Megatron-LM's arguments, hidden defaults included.

A recipe's function (`llm.llama31_8b.finetune_recipe`, `llama3_8b_pretrain_config`) has defaults of its own
(read from NeMo 2.0 to 2.4 and Megatron-Bridge 0.2): 512 sequences of 8,192 a step on one node of 8 GPUs to
pre-train; to fine-tune 128 of 2,048, or 8 rows of 4,096 where `packed_sequence` is set (`performance_mode`
sets it), by LoRA of rank 8 unless `peft_scheme` is none: on all linear layers, on the fused projection alone
in `performance_mode` and in Megatron-Bridge. Gradients are added up in fp32, in `performance_mode` in bf16.
Degrees differ from model to model: where neither script nor `bridge_recipes.json` (of NeMo 2; of
Megatron-Bridge 0.6, where a recipe's name tells its GPUs too) states them, they count as 1, said.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from finegauge.formats import shipped_data
from finegauge.formats.megatron_lm import DEGREES, FORMAT, TARGETS
from finegauge.formats.model_names import narrow
from finegauge.formats.sheet import dotted

_UNASKED: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {"seq_length": 8192, "global_batch_size": 512, "train_iters": 1_168_251},
    "finetune": {"seq_length": 2048, "global_batch_size": 128, "train_iters": 1000, "peft_scheme": "lora"},
}
_OF_LORA = {"peft_dim": 8, "peft_alpha": 16, "use_distributed_optimizer": False}
RENAMED = {
    "max_steps": "train_iters",
    "sequence_length": "seq_length",
    "peft": "peft_scheme",
    "hf_path": "model",
    **{f"{of}_parallelism": f"{of}_model_parallel_size" for of in ("tensor", "pipeline", "expert")},
    **{"context_parallelism": "context_parallel_size", "sequence_parallelism": "sequence_parallel"},
}
_SHIPPED = shipped_data("bridge_recipes.json")
BASES: Mapping[str, Mapping[str, Any]] = _SHIPPED["bases"]  # of flat recipes, which set the rest
_COMMAND = re.compile(
    r"(\w+?)_(pretrain|finetune|sft|peft)_(?:\d+gpu_\w+?_)?(?:((?:mx|nv)?fp[48]\w*?|bf16\w*?)_)?"
    r"(?:\d+k_|deterministic_)?(?:config|recipe)"
)
_OF_BRIDGE = (*DEGREES, "seq_length", "global_batch_size", "micro_batch_size", "train_iters")


def of_recipe(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe's function does unasked and what is stated over it, under Megatron-LM's names."""
    flat: dict[str, Any] = {}
    for path, value in dotted(keys).items():
        section, _, name = path.rpartition(".")
        prefixed = f"peft_{name}" if section.rpartition(".")[2] == "peft" else name
        flat[RENAMED.get(prefixed, prefixed)] = value
    command, model = str(flat.get("command", "pretrain")), str(flat.get("recipe_model", ""))
    fast = str(flat.pop("performance_mode", "")).lower() == "true"
    in_fp32 = str(flat.pop("grad_reduce_in_fp32", not fast)).lower() == "true"
    flat.setdefault("grad_reduce_in_bf16", not in_fp32)
    if command == "finetune":
        flat.setdefault("packed_sequence", fast)
    if model and (maker := flat.pop("from_recipe", False)):
        found = {"num_gpus_per_node": 8, "bf16": True, **_UNASKED.get(command, _UNASKED["finetune"])}
        if str(flat.get("packed_sequence", "")).lower() == "true":
            found |= {"seq_length": 4096, "global_batch_size": 8}
        if longer := re.fullmatch(r"(.+)_(16|32|64|128)k", model):
            model = flat["recipe_model"] = longer[1]
            found["seq_length"] = 1024 * int(longer[2])
        if fast or maker == "bridge":
            found["peft_target_modules"] = ["linear_qkv"]
        stated, degrees = str(flat.get("global_batch_size", 8)), [flat.get(name) for name in DEGREES]
        shared = prod(int(str(one)) for one in degrees if str(one).isdecimal())
        if maker == "bridge" and ((stated.isdecimal() and int(stated) % 8) or shared > 8):
            del found["num_gpus_per_node"]  # it is torchrun's, and not 8 then
        scheme = str(flat.get("peft_scheme", found.get("peft_scheme", "none"))).lower()
        kind = "pretrain" if command == "pretrain" else "lora" if scheme in ("lora", "dora") else "full"
        known = _SHIPPED["nemo"].get(f"{kind} {model}")
        flat = {**found, **(_OF_LORA if kind == "lora" else {}), **(known or {}), **flat}
        if known is None and "tensor_model_parallel_size" not in flat:
            flat["recipe_degrees"] = "unknown"
        if "devices" in flat:
            flat["num_gpus_per_node"] = flat.pop("devices")
    return {"bf16": True, **flat}


def recipe_of(function: str, module: str) -> dict[str, Any]:
    """Return the model and the command of a recipe's function; {} of any other function."""
    named = _COMMAND.fullmatch(_SHIPPED["older"].get(function, function))
    if named:
        kind = "pretrain" if named[2] == "pretrain" else "finetune"
        made = {"recipe_model": named[1], "command": kind, "from_recipe": "bridge", **narrow(named[3] or "")}
        return made | ({"peft_scheme": "none"} if named[2] == "sft" else {})
    functions = ("pretrain_recipe", "finetune_recipe", "pretrain_config", "finetune_config")
    if function in functions and module != "llm":  # the package, of none alone
        return {"recipe_model": module, "command": function.partition("_")[0], "from_recipe": True}
    return {}


def shipped_recipe(function: str) -> dict[str, Any]:
    """Return what a recipe of Megatron-Bridge's own states; {} of any other."""
    row = _SHIPPED["functions"].get(_SHIPPED["older"].get(function, function))
    if row is None:
        return {}
    packs = {} if "_pretrain_" in function else {"packed_sequence": True}
    degrees: dict[str, Any] = dict(zip(_OF_BRIDGE, row, strict=False))
    return {**packs, "peft_target_modules": [*TARGETS], **degrees, **row[-1]}


def recipe_of_command(named: str, options: dict[str, Any], loose: Sequence[str]) -> dict[str, Any]:
    """Return the recipe of a command: of NeMo 2's, or of a script of Megatron-Bridge's by option or name."""
    if named == "nemo":
        model, _, given = str(options.pop("factory", "")).partition("(")
        from finegauge.formats.launchers import options_of

        more = options_of([word.strip() for word in given.rstrip(")").split(",")], hydra=True)[0]
        return (
            {"command": loose[0], "recipe_model": model, "from_recipe": bool(model), **more} if loose else {}
        )
    script = re.search(r"(pretrain|finetune)_(\w+)\.py$", named[-200:])
    function = str(options.pop("recipe", f"{script[2]}_{script[1]}_config" if script else ""))
    return recipe_of(function, "") | shipped_recipe(function)


NEMO = FORMAT._replace(name="NeMo", adapt=of_recipe, not_modelled=f"{FORMAT.not_modelled} val_check_interval")
