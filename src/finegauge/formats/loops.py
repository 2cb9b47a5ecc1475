"""Training loops that a Python text writes out itself, and Lightning's: what they say of batch and steps.

Read are the data loader's batch, the divisor of the loss, the range of the epochs, the optimizer's class and
what Accelerator, autocast or Lightning's Trainer and Fabric are given, as arguments of transformers' Trainer,
whose work such a loop does. Where a loop does other work (it samples, distils or freezes by hand) nothing
is read.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finegauge.formats.python_values import Values
from finegauge.formats.script_changes import OPAQUE, callee, last_name

_OPTIMIZERS = re.compile(r"(Paged|Fused)?(AdamW?|Lion|SGD|Adafactor)(8bit)?")
_LENGTHS = ("max_length", "max_seq_length", "seq_length", "seq_len", "max_len", "max_seq_len", "block_size",
            "context_length")  # fmt: skip
_FINDS_LAYERS = re.compile(  # names of layers are gathered and returned
    r"named_modules\(\)[\s\S]*\b(\w+)\.(?:add|append)\([\s\S]*\breturn (?:\w+\()*\1\b"
)
_MAX_FINDER = 4_000  # characters
_OF_FIT = {"keras", "keras_nlp", "keras_hub", "tensorflow", "lightning", "pytorch_lightning"}
_DISTILS = ("GKD", "GOLD", "MiniLLM", "Distillation", "DistillationSFT")
_OTHER_WORK = re.compile(r"(?i)grpo|ppo|dpo|rollout|reward|distil|teacher|critic|adversar|discriminator")
_OF_LIGHTNING = {
    **{"max_epochs": "num_train_epochs", "max_steps": "max_steps"},
    **{"accumulate_grad_batches": "gradient_accumulation_steps"},
}


_DIVIDING = (
    *("FSDP", "FullyShardedDataParallel", "fully_shard"),
    *("FullyShardedDataParallelPlugin", "DeepSpeedPlugin"),
)


def without_opaque(value: Any) -> Any:
    """Return a list or a mapping without what only running the text would tell; itself if that is nothing."""
    if isinstance(value, dict):
        kept: Any = {key: without_opaque(one) for key, one in value.items() if one is not OPAQUE}
        same = len(kept) == len(value) and all(kept[key] is one for key, one in value.items())
    elif isinstance(value, list):
        kept = [without_opaque(one) for one in value if one is not OPAQUE]
        same = len(kept) == len(value) and all(a is b for a, b in zip(kept, value, strict=True))
    else:
        return value
    return value if same else kept


def imports(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return what modules the names of a script come from, {name: module}."""
    found = dict[str, str]()
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name.partition(".")[0]
            found[name] = str(node.module or ".") if isinstance(node, ast.ImportFrom) else alias.name
    return found


def name_linears(tree: ast.Module) -> None:
    """Have calls of a script's own functions that list a model's linear layers say "all-linear"."""
    nodes = list(ast.walk(tree))
    functions = [(one.name, ast.unparse(one)) for one in nodes if isinstance(one, ast.FunctionDef)]
    short = [(name, text) for name, text in functions if "Linear" in text and len(text) < _MAX_FINDER]
    finders, word = {name for name, text in short if _FINDS_LAYERS.search(text)}, ast.Constant("all-linear")
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.keyword) and isinstance(node.value, ast.Call):
            node.value = word if last_name(node.value.func) in finders else node.value


def own_loop(nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str]) -> dict[str, Any]:
    """Return a loop's arguments under the names of transformers' Trainer, {} where there is none to read.

    What only running it would tell is `OPAQUE`.

    Args:
        nodes: Of the syntax tree.
        values: What its expressions come to.
        modules: Where its names come from, {name: module}.
    """
    calls = [(node, *callee(node.func)) for node in nodes if isinstance(node, ast.Call)]
    trainer = next((call for call, owner, name in calls if name == "Trainer" and _lightning(
        modules.get(owner or name, ""))), None)  # fmt: skip
    steps = any(name == "backward" for _, _, name in calls)
    optimizer = next((name for _, _, name in calls if _OPTIMIZERS.fullmatch(name)), "")
    loaded = [owner for _, owner, name in calls if name == "from_pretrained"]
    models = [one for one in loaded if re.search(r"^AutoModel|For[A-Z]\w+$|LMHeadModel$", one)]
    named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    frozen = any(
        isinstance(node, ast.Assign) and last_name(node.targets[0]) == "requires_grad" for node in nodes
    )
    engine = next((call for call, owner, name in calls if (owner, name) == ("deepspeed", "initialize")), None)
    if not (optimizer or engine) or len(models) != 1 or frozen or any(map(_OTHER_WORK.search, named)):
        return {}
    if trainer is None and not steps:
        return {}
    found: dict[str, Any] = {
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": optimizer.lower() or "adamw",
    }
    found |= _batch(calls, values) if engine is None else _of_engine(engine, values)
    for call, owner, name in calls:
        told = values.named(call)
        lengths = [n for n in map(told.get, _LENGTHS) if isinstance(n, int) and 16 <= n < 10**7]
        found |= {"max_length": lengths[-1]} if lengths else {}
        if name == "Accelerator":
            found |= {key: value for key, value in told.items() if key == "gradient_accumulation_steps"}
            found |= _precision(str(told.get("mixed_precision")))
        elif name == "Fabric" and _lightning(modules.get(owner or name, "")):
            found |= _of_trainer(told | _strategy(call, values))
        elif name == "autocast":
            found |= _precision(str(told.get("dtype", "fp16")))
        elif name in _DIVIDING:
            found |= _of_plugin(name, told)
    found |= dict(_turns(nodes, values))
    if trainer is not None:
        found |= _of_trainer(values.named(trainer) | _strategy(trainer, values))
    return found


def _of_plugin(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what divides the model: FSDP's wrapper, a plugin of accelerate's."""
    if name != "DeepSpeedPlugin":
        strategy = str(told.get("sharding_strategy", "full_shard")).lower()
        return {"fsdp": strategy + (" offload" if told.get("cpu_offload") else "")}
    devices = {what: told.get(f"offload_{what}_device") for what in ("optimizer", "param")}
    zero = {"stage": told.get("zero_stage", 2)} | {f"offload_{k}": {"device": v} for k, v in devices.items()}
    steps = {key: value for key, value in told.items() if key == "gradient_accumulation_steps"}
    return {"deepspeed": told.get("hf_ds_config", {"zero_optimization": zero}), **steps}


def _of_engine(call: ast.Call, values: Values) -> dict[str, Any]:
    """Return what DeepSpeed's engine is given, whose file says its batch."""
    told = values.named(call)
    config = next((told[key] for key in ("config", "config_params") if key in told), None)
    config = values.option("deepspeed_config") if config in (None, OPAQUE) else config
    batch = ("per_device_train_batch_size", "gradient_accumulation_steps")
    return {"deepspeed": config, **dict.fromkeys(batch, OPAQUE if config is OPAQUE else "auto")}


def _lightning(module: str) -> bool:
    return module.partition(".")[0] in ("lightning", "pytorch_lightning")


def _batch(calls: Sequence[tuple[ast.Call, str, str]], values: Values) -> dict[str, Any]:
    """Return the batch of the loader that shuffles, else of the first; one sample where there is none."""
    loaders = [values.named(call) for call, _, name in calls if name == "DataLoader"]
    chosen = next((told for told in loaders if told.get("shuffle")), loaders[0] if loaders else {})
    return {"per_device_train_batch_size": chosen.get("batch_size", 1)}


def _turns(nodes: Sequence[ast.AST], values: Values) -> Iterator[tuple[str, Any]]:
    """Yield epochs, steps, and over how many micro-batches the loss is divided."""
    for node in nodes:
        divided = (
            (node.left, node.right)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            else (node.target, node.value)
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)
            else None
        )
        if divided and last_name(divided[0]) in ("loss", "train_loss"):
            told = values.of(divided[1])
            if isinstance(told, int) and re.search(r"acc", ast.unparse(divided[1])):
                yield "gradient_accumulation_steps", told
        if isinstance(node, ast.If) and (each := _every(node, values)):
            yield "gradient_accumulation_steps", each
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            ranged = next((one for one in ast.walk(node.iter) if isinstance(one, ast.Call) and callee(
                one.func)[1] in ("range", "trange") and one.args), None)  # fmt: skip
            kind = re.search(r"ep(?:och|$)|step|iter", last_name(node.target).lower())
            count = values.of(ranged.args[-1 if len(ranged.args) < 3 else 1]) if ranged else None
            if kind and isinstance(count, int) and count > 0:
                yield "num_train_epochs" if kind[0][:2] == "ep" else "max_steps", count


def _every(node: ast.If, values: Values) -> int | None:
    """Return after how many turns an optimizer steps: if (i + 1) % 8 == 0: optimizer.step()."""
    parts = [one for one in ast.walk(node.test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)]
    counts = [count for one in parts if isinstance(count := values.of(one.right), int) and count > 1]
    made = [callee(one.func) for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call)]
    steps = (
        any(name == "step" and re.search(r"opt", owner.lower()) for owner, name in made) if counts else False
    )
    return counts[0] if steps else None


def _precision(word: str) -> dict[str, Any]:
    """Return the arithmetic that a word of accelerate, autocast or Lightning stands for."""
    return {"bf16": True} if re.match(r"bf(loat)?16", word) else {"fp16": True} if "16" in word else {}


def _strategy(call: ast.Call, values: Values) -> dict[str, str]:
    """Return by its word a strategy that is an object: DeepSpeedStrategy(stage=3) is deepspeed_stage_3."""
    given = next((one.value for one in call.keywords if one.arg == "strategy"), None)
    made = values.assigned(given.id) if isinstance(given, ast.Name) else given
    if not isinstance(made, ast.Call):
        return {}
    kind, told = callee(made.func)[1].lower().removesuffix("strategy"), values.named(made)
    kind += f"_stage_{told.get('stage', 2)}" if "deepspeed" in kind else ""
    kind += f"_{str(told['sharding_strategy']).lower()}" if "sharding_strategy" in told else ""
    return {"strategy": kind + ("_offload" if any("offload" in key and told[key] for key in told) else "")}


def _of_trainer(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Lightning's Trainer is given."""
    found = {_OF_LIGHTNING[key]: value for key, value in told.items() if key in _OF_LIGHTNING}
    found |= {} if "true" in str(told.get("precision")) else _precision(str(told.get("precision")))
    devices, nodes = told.get("devices"), told.get("num_nodes")
    devices, nodes = (
        len(devices) if isinstance(devices, list) else devices,
        nodes if isinstance(nodes, int) else 1,
    )
    block: dict[str, Any] = {}
    if isinstance(devices, int) and devices > 0:
        block = {"num_gpus": devices * nodes} | ({"num_nodes": nodes} if nodes > 1 else {})
    if strategy := re.search(r"deepspeed_stage_([123])|fsdp", str(told.get("strategy"))):
        word, stage = str(told.get("strategy")), strategy[1]
        plain = "fsdp_shard_grad_op" if "grad_op" in word else "hybrid" if "hybrid" in word else "fsdp"
        block["sharding"] = f"zero{stage}" if stage else plain
        if "offload" in word:
            block["cpu_offload"] = {"3": "all", "2": "optimizer", "1": "optimizer"}.get(stage, "params")
    return found | ({"finegauge": block} if block else {})


def instead(modules: Mapping[str, str], calls: set[str]) -> str:
    """Return what a text does, of which no training is read."""
    roots = {module.partition(".")[0] for module in modules.values()}
    roots |= {"neuron" for module in modules.values() if module.startswith("optimum.neuron")}
    roots |= {"mlx" for module in modules.values() if ".mlx" in module}
    for module, reason in (
        ("mlx_lm", "it trains on Apple's GPUs by MLX, which is not supported"),
        ("mlx", "it trains on Apple's GPUs by MLX, which is not supported"),
        ("neuron", "it trains on AWS Trainium by optimum-neuron, which is not supported"),
        ("flax", "it trains by JAX, which is not supported"),
        ("paddlenlp", "it trains by PaddleNLP, which is not supported"),
        ("sentence_transformers", "it trains a model of embeddings"),
    ):
        if module in roots:
            return reason
    for call, reason in (
        *((f"{name}Trainer", f"it distils ({name}Trainer), which is not supported") for name in _DISTILS),
        ("Accelerator", "its loop is its own (accelerate's Accelerator)"),
        ("LightningModule", "it trains by Lightning"),
        ("fit", "it trains by Lightning or Keras" if roots & _OF_FIT else "its trainer is its own"),
        ("LLM", "it generates, by vLLM"),
        ("backward", "its loop is its own"),
    ):
        if call in calls:
            return f"{reason}; write the run as FineGauge's own fields, such as model and method"
    return "it calls neither SFTConfig nor TrainingArguments nor a Trainer with literal arguments"
