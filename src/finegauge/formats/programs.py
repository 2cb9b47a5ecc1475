"""Programs that start a training or serve a model, by the words that a command line begins with.

Among them scripts around transformers' Trainer that many people copied: qlora.py, alpaca-lora's,
open-instruct's.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from finegauge.formats import model_keys, shipped_data
from finegauge.formats.key_table import RUN_FILE, recognise
from finegauge.formats.sheet import BLOCK, YES, mapping_in
from finegauge.records import NamedTuple

_COPIED = shipped_data("copied_scripts.json")
_OTHERWISE = {word: usual for usual, words in _COPIED["names"].items() for word in words.split()}
_OF_OLD_TRL = {
    **dict.fromkeys(("model_name", "base_model_name"), "model_name_or_path"),  # of TRL 0.7's scripts
    **{"seq_length": "max_seq_length", "r": "lora_r", "target_modules": "lora_target_modules"},
}
_OF_CONFIG = re.compile(r"^(fsdp_config|train_config|lora_config|quantization_config)\.")
_OF_SWIFT = {"train_type", "tuner_type", "sft_type", "rlhf_type", "template", "torch_dtype"}
_OF_MEGATRON = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "use_mcore_models"}
_LEARNS = {
    *("num_train_epochs", "max_steps", "learning_rate", "lr", "gradient_accumulation_steps"),
    *("use_lora", "use_peft", "lora_r"),
}
# Classes of a script's options, whose names stand before theirs: --training_args.max_steps.
OF_CLASS = re.compile(r"^\w*(args|arguments|config)\.")
_HARMLESS_THERE = ("batch_size", "val_set_size", "train_on_inputs", "add_eos_token", "prompt_template_name")


class Program(NamedTuple):
    """A program that trains, and how its command line is read."""

    reader: str = ""
    keys: Mapping[str, Any] = {}  # that the command itself states
    hydra: bool = False  # options are key=value, and so is a word after an option that takes none
    all_gpus: bool = False  # starts one process for each GPU that it sees
    usual: str = ""  # whose keys the options are where they do not tell it
    renamed: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # its options as its reader has them
    model: str = ""  # the option whose value may stand alone


def of_qlora(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of artidoro/qlora's script under transformers' names."""
    found = {key: value for key, value in options.items() if key not in _COPIED["qlora"]["own"]}
    if (bits := str(options.get("bits", 4))) != "4":
        found |= {"load_in_4bit": False, "load_in_8bit": bits == "8"}
    if "double_quant" in options:
        found["use_bnb_nested_quant"] = options["double_quant"]
    lengths = [
        str(options.get(key, usual)) for key, usual in (("source_max_len", 1024), ("target_max_len", 256))
    ]
    if all(length.isdecimal() for length in lengths):
        found["max_seq_length"] = sum(map(int, lengths))
    if str(options.get("full_finetune", "false")).lower() == "true":
        found |= {"use_peft": False, "load_in_4bit": False}
    named = str(options.get("dataset", ""))
    return found | ({"dataset_name": _COPIED["qlora"]["data"].get(named, named)} if named else {})


def of_open_instruct(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of open-instruct's scripts under transformers' names."""
    found = {_COPIED["open_instruct"]["renamed"].get(key, key): value for key, value in options.items()}
    named, cut = found.get("dataset_name"), found.pop("sequence_parallel_size", None)
    found |= {"dataset_name": named[0]} if isinstance(named, list) else {}
    if str(found.pop("use_lora", "")).lower() in YES:
        usual = {"lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.1, "lora_target_modules": "all-linear"}
        found = {**usual, **found, "use_peft": True}
    if str(found.pop("use_qlora", "")).lower() in YES:
        found |= {"load_in_4bit": True, "use_bnb_nested_quant": True, "optim": "paged_adamw_32bit"}
    return found | ({"finegauge": {"context_parallel": cut}} if cut not in (None, "1") else {})


def of_copies(options: dict[str, Any], gpus: int) -> tuple[dict[str, Any], str]:
    """Return the options of a script that is not there under usual names, and whose it is."""
    others = {*options} - {*_COPIED["alpaca_lora"]["own"], *_COPIED["alpaca_lora"]["renamed"]}
    theirs = {"micro_batch_size", "micro_train_batch_size", "cutoff_len"}
    if "base_model" in options and theirs & {*options} and len(others) < 3:
        return _of_alpaca_lora(options, gpus), "alpaca-lora's: the model in 8 bits, float16"
    if _OF_MEGATRON & {*options}:
        return options, "its framework's"
    flat = {OF_CLASS.sub("", key): value for key, value in options.items()}
    reader = recognise(flat)
    if reader in ("", RUN_FILE, "trl", "trl:TRAINER") or (reader == "ms_swift" and not _OF_SWIFT & {*flat}):
        options = _with_model(flat)
    if str(options.get("lora_enable", "")).lower() in YES:
        return {
            **_COPIED["llava"]["unasked"],
            **options,
        }, "LLaVA's: adapters of rank 64 on all layers"
    return options, "its framework's"


def _of_alpaca_lora(options: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Return the options of alpaca-lora's script, and what it does unasked, under transformers' names."""
    theirs = _COPIED["alpaca_lora"]
    given = {theirs["renamed"].get(k, k): v for k, v in options.items() if k not in _HARMLESS_THERE}
    found = {**theirs["unasked"], **given}
    whole, micro = str(options.get("batch_size", 128)), str(found["per_device_train_batch_size"])
    if whole.isdecimal() and micro.isdecimal() and int(micro):
        found["gradient_accumulation_steps"] = max(1, int(whole) // int(micro) // gpus)
    return found


def is_llama_factory(options: Mapping[str, Any]) -> bool:
    """Return whether options of a script called src/train.py are LLaMA-Factory's, or may be."""
    theirs = {"stage", "finetuning_type", "template", "cutoff_len", "dataset_dir"} & {*options}
    return bool(theirs) or "model_name_or_path" not in options


def _with_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that are transformers' Trainer's, with the model under its scripts' usual name."""
    found = {key: value for key, value in options.items() if key not in _OTHERWISE}
    for key, usual in _OTHERWISE.items():
        if key in options:
            found[key if usual in found else usual] = options[key]
    if not _LEARNS & {*found} and "per_device_train_batch_size" not in options:
        return dict(options)  # of what may as well generate
    named = next((name for name in _COPIED["models"] if name in found), "")
    if not named or "model_name_or_path" in found or "per_device_train_batch_size" not in found:
        return found
    return {"model_name_or_path" if key == named else key: value for key, value in found.items()}


def with_server(keys: Mapping[str, Any], server: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a training whose answers a server of the same script writes, with its GPUs."""
    told = {key.replace("-", "_").removeprefix("vllm_"): value for key, value in server.items()}
    degree, copies = (str(told.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "data"))
    if str(keys.get("vllm_mode")) != "server" or not (degree.isdecimal() and copies.isdecimal()):
        return keys
    own = {"rollout_tensor_parallel": int(degree), "rollout_gpus": int(degree) * int(copies)}
    own |= {name: told[name] for name in ("gpu_memory_utilization",) if name in told}
    return {**keys, BLOCK: {**own, **mapping_in(keys, BLOCK)}}


def in_full(keys: dict[str, Any], script: str = "") -> dict[str, Any]:
    """Return the keys with options of transformers' Trainer in full, which argparse takes abbreviated.

    Words of the script that takes them are its own.
    """
    from finegauge.formats.trl import TRAINER

    known = TRAINER.keys
    own = {*known, *re.findall(r"\w+", script)}
    found = {
        key: [one for one in known if one.startswith(key)] if len(key) > 7 and key not in own else []
        for key in keys
    }
    return {found[key][0] if len(found[key]) == 1 else key: value for key, value in keys.items()}


def _is_plain_trainer(keys: Mapping[str, Any], named: str) -> bool:
    """Return whether a script that is not there has options of scripts around transformers' Trainer."""
    of_scripts = {"model_max_length", "block_size", "q_lora", "use_lora", "use_flash_attn"} & {*keys}
    adapts = "lora_r" in keys and "use_peft" not in keys
    learns = "per_device_train_batch_size" in keys and _LEARNS & {*keys} and recognise(keys) in ("", RUN_FILE)
    return named.endswith(".py") and "model_name_or_path" in keys and bool(of_scripts or adapts or learns)


def reader_of(keys: Mapping[str, Any], named: str) -> str:
    """Return which module reads the options of a script that is not there; "" where they do not tell."""
    if _is_plain_trainer(keys, named):
        return "trl:TRAINER"
    reader = recognise(keys)
    if reader in ("", RUN_FILE) and isinstance(keys.get("policy"), Mapping):
        return "nemo_rl"
    return "megatron_lm" if reader in ("", RUN_FILE) and _OF_MEGATRON & {*keys} else reader


def _of_unsloth(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `unsloth train`, which names no sections, in the sections of its file."""
    from finegauge.formats.unsloth import FORMAT

    inside = {key.rpartition(".")[2]: key for key in sorted({*FORMAT.known, *FORMAT.keys}) if "*" not in key}
    off = {name: inside[name[3:]] for name in options if name.startswith("no_") and name[3:] in inside}
    on = {inside.get(name, name): value for name, value in options.items() if name not in off}
    return on | dict.fromkeys(off.values(), False)


def _of_litgpt(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `litgpt`, where a class stands beside its arguments: --data JSON --data.json_path."""
    classes = {key.partition(".")[0] for key in options if "." in key} & {*options}
    return {f"{key}.class_path" if key in classes else key: value for key, value in options.items()}


def _of_unsloth_cli(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of unsloth-cli.py, and what it does unasked, in the sections of Unsloth's file."""
    from finegauge.formats.scripts import unsloth_keys

    given = {_COPIED["unsloth_cli"]["renamed"].get(key, key): value for key, value in options.items()}
    return unsloth_keys({**_COPIED["unsloth_cli"]["unasked"], **given}, adapts=True)


def _of_old_trl(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of TRL's scripts, by the names of any release."""
    plain = {OF_CLASS.sub("", key): value for key, value in options.items()}
    adapts = {"use_peft": True} if any(key.startswith("peft_config.") for key in options) else {}
    return {_OF_OLD_TRL.get(key, key): value for key, value in plain.items()} | adapts


def _of_llama_recipes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of llama-recipes without the class that they are of: --fsdp_config.pure_bf16."""
    plain = {_OF_CONFIG.sub("", key): value for key, value in options.items()}
    return {key: value for key, value in plain.items() if not key.startswith("dataset.")}


TRL = {word: Program("trl", {"trainer": word}, all_gpus=True, renamed=_of_old_trl) for word in (
    "sft", "dpo", "grpo", "reward", "kto", "rloo")}  # fmt: skip
_TORCHTUNE = Program("torchtune", hydra=True)
_SWIFT = {"sft": Program("ms_swift"), "pt": Program("ms_swift", {"rlhf_type": "pt"}),
          "rlhf": Program("ms_swift", {"rlhf_type": "dpo"})}  # fmt: skip
_VLLM, _SGLANG, _TENSORRT_LLM, _TGI, _LIGHTLLM = (
    Program(f"serving_engines:{name}", all_gpus=True, model=model) for name, model in (
        ("VLLM", "model"), ("SGLANG", "model_path"), ("TENSORRT_LLM", "model"), ("TGI", "model_id"),
        ("LIGHTLLM", "model_dir"))
)  # fmt: skip
# Programs with a subcommand.
LITGPT = Program("litgpt", renamed=_of_litgpt, model="checkpoint_dir")
TOOLS: Mapping[str, Mapping[str, Program]] = {
    "llamafactory-cli": {
        "train": Program("", hydra=True, all_gpus=True, usual="llamafactory"),
        "sft": Program("llamafactory_engines", hydra=True, all_gpus=True),
        "dpo": Program("llamafactory_engines", {"finegauge": {"phase": "dpo"}}, hydra=True, all_gpus=True),
        "rm": Program("llamafactory_engines", {"finegauge": {"phase": "reward"}}, hydra=True, all_gpus=True),
    },
    "axolotl": {"train": Program("axolotl", all_gpus=True)},
    "trl": TRL | {"vllm-serve": _VLLM},
    "swift": _SWIFT | {"rollout": _VLLM},
    "megatron": {word: Program("ms_swift:MEGATRON", {"command": word}) for word in ("sft", "pt", "rlhf")},
    "tune": {"run": _TORCHTUNE},
    "autotrain": {"llm": Program("autotrain", {"task": "llm"}), "": Program("autotrain")},
    "ludwig": {"train": Program("ludwig"), "experiment": Program("ludwig")},
    "litgpt": {
        **{f"finetune{kind}": LITGPT._replace(keys={"command": f"finetune{kind or '_lora'}"})
           for kind in ("", "_lora", "_full", "_adapter", "_adapter_v2")},
        "pretrain": LITGPT._replace(keys={"command": "pretrain"}),
    },
    "nemo": {"llm": Program("nemo:NEMO", hydra=True)},
    "automodel": {"": Program("nemo_automodel", hydra=True)},
    "unsloth": {"train": Program("unsloth", renamed=_of_unsloth)},
    "vllm": {"serve": _VLLM},
    "vllm-openai": {"": _VLLM},
    "trtllm-serve": {"serve": _TENSORRT_LLM, "": _TENSORRT_LLM},
    "text-generation-launcher": {"": _TGI},
    "text-generation-inference": {"": _TGI},
    "sglang": {"serve": _SGLANG},
}  # fmt: skip
MODULES = {"llamafactory.cli": "llamafactory-cli", "llmtuner.cli": "llamafactory-cli"}  # python -m
_OPEN_INSTRUCT = Program("trl:TRAINER", _COPIED["open_instruct"]["unasked"], renamed=of_open_instruct)
LLAMA_FACTORY = Program("", hydra=True, all_gpus=True, usual="llamafactory")
# Modules (python -m) and scripts, by a pattern of the whole name or path.
SCRIPTS: tuple[tuple[str, Program], ...] = (
    (r"axolotl\.cli\.train", Program("axolotl")),
    (r"(llamafactory|llmtuner)\.(cli|launcher|train\.tuner)|.*LL[aA]MA-?Factory.*\.py|(\.\./)*src/train(_bash|_sft)?\.py",
     LLAMA_FACTORY),
    *((rf"trl\.scripts\.{word}|(.*/)?(examples|trl)/scripts/{word}(_\w+)?\.py", program)
      for word, program in TRL.items()),
    (r"(.*/)?llm_sft\.py", Program("ms_swift")),  # before 2.0
    *((rf"swift\.cli\.{word}|(.*/)?swift/cli/{word}\.py", program) for word, program in _SWIFT.items()),
    (r"torchtitan\.(experiments\.\w+\.)?train|(.*/)?torchtitan/train\.py|(.*/)?run_train\.sh",
     Program("torchtitan")),
    (r"verl\.trainer\.(main_(?!eval|generation|filter)\w+|(fsdp_)?sft_trainer\w*)|recipe\.\w+\.(main_\w+|\w+_main)"
     r"|verl\.experimental\.\w+\.(main_\w+|\w+_main)",
     Program("verl", hydra=True)),
    (r"openrlhf\.cli\.train_(?P<kind>\w+)", Program("openrlhf")),
    (r"(.*/)?openrlhf/cli/train_(?P<kind>\w+)\.py", Program("openrlhf")),
    (r"(.*/)?recipes/\w+/(pretrain|finetune)_\w+\.py|(.*/)?run_recipe\.py",
     Program("nemo:NEMO", hydra=True)),
    (r"(.*/)?pretrain_(gpt|mamba|llama\w*|mixtral\w*|qwen\w*|deepseek\w*)\.py", Program("megatron_lm")),
    (r"(.*/)?recipes/\w+_(single_device|distributed)\.py", _TORCHTUNE),
    (r"(llama_recipes|llama_cookbook)\.finetuning|(.*/)?finetuning\.py",
     Program("llama_recipes", renamed=_of_llama_recipes)),
    (r"(.*/)?megatron_gpt_(finetuning|peft_tuning|sft)\.py", Program("nemo", hydra=True)),
    (r"nemo_automodel\.cli\.app", Program("nemo_automodel", hydra=True)),
    (r"(.*/)?unsloth-cli\.py", Program("unsloth", renamed=_of_unsloth_cli)),
    (r"(.*/)?run_clm(_no_trainer)?\.py",
     Program("trl:TRAINER", {"packing": True, "packing_strategy": "wrapped"})),
    *((rf"(.*/)?{name}\.py", Program("trl:TRAINER", keys)) for name, keys in model_keys.EXAMPLES.items()),
    (r"(.*/)?qlora\.py", Program("trl:TRAINER", _COPIED["qlora"]["unasked"], renamed=of_qlora)),
    (r"(.*/)?open_instruct/finetune\.py", _OPEN_INSTRUCT),
    (r"(.*/)?open_instruct/(?P<kind>dpo)_tune\w*\.py", _OPEN_INSTRUCT),
    (r"ludwig\.train", Program("ludwig")),
    (r"(.*/)?train/train\.py", Program("llm_foundry", hydra=True)),
    (r"vllm\.entrypoints\.(openai\.)?api_server", _VLLM),
    (r"sglang\.launch_server", _SGLANG),
    (r"lightllm\.server\.api_server", _LIGHTLLM),
)  # fmt: skip


def own_settings(script: tuple[str, str] | None, files: Callable[[str], str | None]) -> str:
    """Return how a script takes its settings from a file that it opens itself: "hydra", "argparse" or "".

    `files` returns the text of one beside it, which may open it for the script.
    """
    text = script[0] if script else ""
    if re.search(r"^\s*@hydra\.main\(", text, re.MULTILINE):
        return "hydra"
    declares = re.search(r"""add_argument\(\s*(["']-\w["'],\s*)?["']--config([_-](file|path))?["']""", text)
    named = declares or ("argv[" in text and "HfArgumentParser(" not in text)
    modules = re.findall(r"^\s*from\s+\.*([\w.]{1,100})\s+import", text, re.MULTILINE)[:20] if named else []
    near = (files(f"{module.replace('.', '/')}.py") or "" for module in modules)
    opens = any(
        re.search(r"safe_load|(yaml|json|OmegaConf|tomli?|tomllib)\.load", one) for one in (text, *near)
    )
    return "argparse" if opens and named else ""
