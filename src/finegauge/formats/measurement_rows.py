"""One row of a measurement table as the fields of a run.

Three kinds of fields come out: what the row states, what its framework does unasked (each with
the framework's name), and what had to be guessed. `settings_of` sees configuration cells only.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from finegauge.catalogue.frameworks import Framework, named_in
from finegauge.catalogue.gpus import known_gpu
from finegauge.documents import cache_path, parse_json, write_document
from finegauge.errors import FieldError, UnknownNameError, did_you_mean, shown
from finegauge.formats.sheet import mixes_under_fsdp
from finegauge.run.rules import SERVING
from finegauge.run.run import FIELDS

MEAN_TOKENS = re.compile(r"mean ([\w-]*?)-?counted tokens per sample = (\d+)", re.IGNORECASE)
UNPADDED = re.compile(r"padding[- ]?free|multipack", re.IGNORECASE)
ANY_MEAN = 1000  # the spread is the same at any mean
NO_CUT = 10**7
PADDED_TO = 8  # tokens, as a run's pad_to_multiple_of is by default


class Mean(NamedTuple):
    """A stated mean length."""

    num_tokens: int
    counts_padding: bool


def mean_of(notes: str) -> Mean | None:
    """Return the mean length that `notes` state."""
    found = MEAN_TOKENS.search(notes)
    return None if found is None else Mean(int(found.group(2)), found.group(1).lower().startswith("hf"))


def varied_lengths(cells: Mapping[str, str], mean: Mean) -> dict[str, Any]:
    """Return the fields of sequences that vary about `mean` as those of published instruction sets do.

    What has to fit is the longest batch, and what a step takes is its longest sequence: a mean must not be
    taken for all. Where the framework's count holds padding, as the HF Trainer's does, the sequences are as
    much shorter as the longest of a batch exceeds the mean.
    """
    from finegauge.catalogue.datasets import LengthHistogram, dataset

    kernels = f"{cells['kernels']} {cells['notes']}"
    joined, length = UNPADDED.search(kernels) is not None, float(mean.num_tokens)
    if mean.counts_padding and not joined:
        batch = int(cells["micro_batch_size"]) if cells["micro_batch_size"].isdigit() else 1
        spread = LengthHistogram.of(dataset(f"instructions-of-{ANY_MEAN}-tokens").lengths, cut_off=NO_CUT)
        length /= spread.expected_max(batch) / spread.mean()
    name = f"instructions-of-{max(1, round(length))}-tokens"
    longest = -(-dataset(name).lengths[-1][0] // PADDED_TO) * PADDED_TO
    fields: dict[str, Any] = {"dataset": name, "seq_len": longest}
    if joined:
        fields["padding"] = "free"
    if "multipack" in kernels.lower():
        fields["group_by_length"] = True  # ranks are given batches of one size
    return fields


_DEGREES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_pipeline_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "dp": "data_parallel_replicate",
}
_SHARDING = {
    **{name: name for name in ("fsdp", "fsdp_shard_grad_op", "zero1", "zero2", "zero3")},
    **{"fsdp2": "fsdp", "fsdp_full_shard": "fsdp", "hsdp": "hybrid", "hybrid": "hybrid"},
    **dict.fromkeys(("ddp", "dp", "zero0", "none"), "none"),
}
_GROUP = re.compile(r"\(\s*size\s*(-?\d+)\s*\)")
_DEGREE = re.compile(r"(tp|vpp|pp|cp|sp|ep|dp)[-=]?(\d+)")


def parallelism(cell: str, num_gpus: int) -> dict[str, Any]:
    """Return the fields of a run that a cell `parallelism` states for `num_gpus` GPUs.

    Tokens are joined by +: ddp, fsdp, fsdp_shard_grad_op, hsdp, zero1 to zero3, tpN, spN, ppN, vppN, cpN,
    epN, dpN, naive_mp. Beside tensor parallelism, sp is Megatron's sequence parallelism. InternEvo writes
    `zero1(size N)tpM`, where N = -1 is all data-parallel ranks.

    Raises: FieldError naming the token that is not known.
    """
    group = _GROUP.search(cell.lower())
    text = _GROUP.sub("+", cell.lower())
    fields: dict[str, Any] = {}
    sequence = 1
    for token in filter(None, re.split(r"[+,;/\s]+", text)):
        degree = _DEGREE.fullmatch(token)
        if token in _SHARDING:
            fields["sharding"] = _SHARDING[token]
        elif token == "sp":
            fields["sequence_parallel"] = True
        elif token == "naive_mp":
            fields["pipeline_schedule"] = "naive"
        elif degree and degree.group(1) == "sp":
            sequence = int(degree.group(2))
        elif degree:
            fields[_DEGREES[degree.group(1)]] = int(degree.group(2))
        else:
            hint = did_you_mean(token, (*_SHARDING, "naive_mp", "tp2", "pp2"))
            raise FieldError(f"parallelism={shown(cell)} has an unknown token {shown(token)}.{hint}")
    _settle(fields, sequence, int(group.group(1)) if group else 0, num_gpus)
    return fields


def _settle(fields: dict[str, Any], sequence: int, group: int, num_gpus: int) -> None:
    """Resolve sequence parallelism, the size of a sharding group, and data parallelism under sharding."""
    if sequence > 1 and fields.get("tensor_parallel", 1) == 1:
        fields["context_parallel"] = sequence  # Ulysses: the sequence is divided, weights are not
    elif sequence > 1:
        fields["sequence_parallel"] = True
    if fields.get("tensor_parallel", 1) == 1:
        fields.pop("sequence_parallel", None)
    if group > 0:
        fields["data_parallel_shard"] = group
    if fields.get("sharding", "none") != "none" and "data_parallel_replicate" in fields and group <= 0:
        replicas = fields.pop("data_parallel_replicate")
        if fields["sharding"] == "hybrid":
            fields["data_parallel_replicate"] = replicas
    if fields.get("pipeline_schedule") == "naive":
        fields["pipeline_parallel"] = num_gpus
    if num_gpus == 1:  # nothing is divided, but DeepSpeed keeps its fp32 copies all the same
        stage = fields.get("sharding", "")
        fields.clear()
        fields |= {"sharding": stage} if stage.startswith("zero") else {}


FULL, CUT_OFF, MEAN = "full", "cut-off", "mean"
GPUS_PER_NODE = 8
DEFAULT_SEQ_LEN = 2048
TRANSFORMERS = re.compile(r"transformers[ =v]*(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
BITSANDBYTES = re.compile(r"(?:bnb|bitsandbytes)[ =v]*(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
NETWORK = re.compile(r"inter-node (\d+)\s*x\s*(\d+)\s*Gb", re.IGNORECASE)
NETWORK_OF_A_GPU = re.compile(r"(\d+)\s*Gb(?:it)?/s per GPU", re.IGNORECASE)
EVERY_LAYER = re.compile(r"checkpointing of every (\d+)(?:nd|rd|th) layer")
GLOBAL_BATCH = re.compile(r"\bGBS\s*=\s*(\d+)", re.IGNORECASE)
ASYNC_TP = re.compile(r"async[- ]?(?:tp|tensor)|userbuffers|tp[- ]comm[- ]overlap(?!\s*(?:off|=\s*false))")
MULTINODE = re.compile(r"multi-?\s?node", re.IGNORECASE)
QUANTISED_COPY = re.compile(
    r"[-_](gptq|awq|int4|int8|bnb[-_]4bit|4bit|8bit|fp8|nvfp4|mxfp4)([-_]dynamic)?$", re.IGNORECASE
)
FORMATS_OF_COPIES = {  # by the end of a name
    **{"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "int8": "int8", "8bit": "gptq8"},
    **dict.fromkeys(("gptq", "awq", "int4", "4bit"), "gptq4"),
}
TUNED = re.compile(r"[-_](chat|instruct|thinking|it|base|hf|sft|dpo)(?=[-_]|$)")
NARROW = re.compile(r"(?:mx|nv)?(?:fp8|float8|fp4|float4)", re.IGNORECASE)
RECIPES = {  # of products in 8 or 4 bit, by the words that mean them
    "mxfp8": r"mxfp8|mxfloat8",
    "nvfp4": r"nvfp4",
    "mxfp4": r"mxfp4",
    "rowwise": r"row-?wise",
    "blockwise": r"block-?(?:wise|scal)|subchannel|deepgemm",
    "delayed": r"delayed",
    "tensorwise": r"tensor-?wise|current[- ]scaling|per[- ]tensor",
}
FILE_NAME = re.compile(r"[\w.+-]+")
# what a source calls a group of projections, by the names that models give to its members
PROJECTIONS = {
    "query": ("q_proj", "query", "c_attn", "qkv_proj", "query_key_value", "Wqkv"),
    "key": ("k_proj", "key", "c_attn", "qkv_proj", "query_key_value", "Wqkv"),
    "value": ("v_proj", "value", "c_attn", "qkv_proj", "query_key_value", "Wqkv"),
    "projection": ("o_proj", "dense", "c_proj", "out_proj", "attention.dense"),
    "output_proj": ("o_proj",),
    "mlp": (
        *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "c_fc", "ffn_up", "ffn_down"),
        *("dense_h_to_4h", "dense_4h_to_h", "w1", "w2", "w3"),
    ),
    "head": ("lm_head", "embed_out"),
    "all": ("all-linear",),
    "linear": ("all-linear",),
    "all_linear": ("all-linear",),
}
FUSED_ATTENTION = frozenset(
    {"gpt_bigcode", "gpt2", "gpt_neox", "falcon", "bloom", "mpt", "qwen", "chatglm", "phi3", "dbrx"}
)
SPLIT_NAMES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
EXTRAS = {"embeddings": "embed_tokens", "embedding": "embed_tokens", "emb": "embed_tokens", "head": "lm_head"}
COPIED = (
    "phase",
    "method",
    "weights_dtype",
    "autocast",
    "optimizer",
    "attention",
    "activation_checkpointing",
    "compile",
)
COUNTS = ("micro_batch_size", "gradient_accumulation_steps")
READ_APART = frozenset(
    {
        *("model", "lora_rank", "lora_targets", "trainable_extra", "kernels", "packing"),
        *("seq_len", "num_gpus", "gpu", "framework", "framework_version", "cpu_offload", *COPIED, *COUNTS),
    }
)
OTHER_FIELDS = frozenset(FIELDS) - READ_APART  # a table may have a column for any field of a run
# where neither the row nor a framework whose defaults are known says; the weights' format follows the method
FALLBACKS: dict[str, Any] = {
    "autocast": "none",
    "optimizer": "adamw",
    "attention": "sdpa",
    "activation_checkpointing": "none",
    "compile": False,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
}


@dataclass
class Settings:
    """The fields of a run with where each comes from."""

    fields: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)  # what the framework does unasked
    assumptions: list[str] = field(default_factory=list)  # what had to be guessed
    lengths: str = FULL  # or CUT_OFF: they vary up to seq_len; or MEAN: only that is known

    def guess(self, name: str, value: Any, why: str = "not stated") -> None:
        """Set a field that nobody stated."""
        self.fields[name], self.origins[name] = value, "assumed"
        self.assumptions.append(f"{name}={value} ({why})")

    def default(self, name: str, value: Any, framework: Framework) -> None:
        """Set a field that the framework decides unasked."""
        self.fields[name], self.origins[name] = value, f"{framework.name} default"
        self.defaults.append(f"{name}={value} ({framework.name}: {framework.source})")


def settings_of(cells: Mapping[str, str], folder: str, known_models: dict[str, str]) -> Settings:
    """Return the fields of the run that the configuration `cells` of a row describe.

    Args:
        cells: By column; "" where the row does not say.
        folder: Where the table lies; `hf_configs/` is looked for in it and above it.
        known_models: Names resolved so far; written to.

    Raises: FineGaugeError where the row names no model, or one that is unknown.
    """
    row = Settings()
    key = f"{cells['hf_config']}|{cells['model']}"
    if key not in known_models:
        known_models[key] = _model(cells["model"], cells["hf_config"], folder)
    row.fields["model"] = known_models[key]
    row.fields["framework"] = _short(cells["framework"])
    row.fields["framework_version"] = _short(cells["framework_version"])
    _copy(cells, row)
    _narrow_products(cells, row)
    _software(cells, row)
    _batch(cells, row)
    _gpus(cells, row)
    framework = next((one for one in named_in(cells["framework"]) if one.source), Framework())
    for name, value in framework.unasked(cells).items():
        if name not in row.fields or name == "gpu":  # which of several of a name its developers have
            row.default(name, value, framework)
    if not cells["packing"] and not {"packing", "dataset"} & set(row.fields):
        row.assumptions.append("every sequence is seq_len long (not stated)")
    if "lora" in cells["method"]:
        _adapters(cells, row)
    quantized = {"qlora": "nf4_dq", "gptq_lora": "gptq4"}
    fallbacks = FALLBACKS | {"weights_dtype": quantized.get(cells["method"], "bf16")}
    if cells["phase"] in SERVING:  # in the format of the model's own checkpoint
        fallbacks.pop("weights_dtype")
    for name, value in fallbacks.items():
        if name not in row.fields:
            row.guess(name, value)
    _mixed_precision(row)
    _without_bf16(row)
    _global_batch(cells, row)
    return row


def _stored_format(cells: Mapping[str, str], row: Settings) -> None:
    """Read of a quantised copy's name in which format it is served."""
    copy = QUANTISED_COPY.search(cells["model"])
    found = FORMATS_OF_COPIES.get(copy.group(1).lower()) if copy else None
    if found:
        row.fields["weights_dtype"] = found


def _copy(cells: Mapping[str, str], row: Settings) -> None:
    served = cells["phase"] in SERVING  # which trains nothing
    if served:
        _stored_format(cells, row)
    if not cells["method"] and not served:
        raise FieldError("The row does not state its method; write full, lora, qlora or gptq_lora.")
    if cells["method"] == "other":
        raise FieldError("method=other: the table does not say which parameters train.")
    row.fields["method"] = "full"
    for name in (*COPIED, *COUNTS, *(set(cells) & OTHER_FIELDS)):
        if cells[name]:
            row.fields[name] = cells[name]
    extras = [
        EXTRAS.get(word, word) for word in re.split(r"[\s+,;]+", cells["trainable_extra"].lower()) if word
    ]
    if extras:
        row.fields["trainable_extra"] = tuple(extras)


def _narrow_products(cells: Mapping[str, str], row: Settings) -> None:
    """Read products in 8 or 4 bit, over weights and activations in 16 or 32 bit."""
    fields, text = row.fields, f"{cells['kernels']} {cells['autocast']}"
    named = NARROW.search(text)
    served = fields.get("phase") in SERVING  # reads weights as they are stored
    trained = not served and cells["method"] == "full" and NARROW.fullmatch(fields.get("weights_dtype", ""))
    if not named and not trained:
        return
    fields["fp8"] = True
    recipe = next((name for name, pattern in RECIPES.items() if re.search(pattern, text, re.I)), None)
    if recipe:
        fields["fp8_recipe"] = recipe
    linears, experts = (re.search(word, text, re.I) for word in (r"linears", r"grouped gemms"))
    if bool(linears) != bool(experts):
        fields["fp8_products"] = "linears" if linears else "experts"
    gathered = re.search(r"(?:fp8|f8|float8) all-gather", cells["notes"], re.IGNORECASE)
    if gathered and "fsdp" in str(cells["parallelism"]).lower():
        fields["fp8_all_gather"] = True
    if trained:
        fields["weights_dtype"] = "bf16"
        row.defaults.append("weights_dtype=bf16 (what trains is kept wider than its narrow products)")
    if NARROW.search(fields.get("autocast", "")):
        fields["autocast"] = "bf16"


def _software(cells: Mapping[str, str], row: Settings) -> None:
    kernels = cells["kernels"].lower()
    named = ("foak", "unsloth", "megatron")
    fused = [name for name in named if name in kernels or f"+{name}" in cells["notes"].lower()]
    if "liger" in kernels and "foak" in fused:  # whose option takes Liger's loss and no other kernel of its
        row.fields["loss"] = "fused"
    elif "liger" in kernels:
        fused.append("liger")
    if re.search(r"fa3|flash[-_ ]?(attention[-_ ]?)?3|cudnn", f"{kernels} {cells['attention'].lower()}"):
        fused.append("flash3")
    if fused:
        row.fields["kernels"] = tuple(fused)
    if "scattermoe" in kernels or "grouped" in kernels:
        row.fields["experts_implementation"] = "grouped_mm"
    if "baseline-peft" in kernels or "prepare_model_for_kbit_training" in cells["notes"]:
        row.fields["upcast_unquantized"] = cells["method"] == "qlora"
    for pattern, name in ((TRANSFORMERS, "transformers_version"), (BITSANDBYTES, "bitsandbytes_version")):
        found = pattern.search(f"{cells['framework']} {cells['framework_version']}")
        if found:
            row.fields[name] = found.group(1)
    _remarks(cells, row, kernels)


def _remarks(cells: Mapping[str, str], row: Settings, kernels: str) -> None:
    """Read what notes say of the loop and its code."""
    notes = cells["notes"].lower()
    if "chunked cross entropy" in notes or "chunked loss" in notes:
        row.fields["loss"] = "chunked"
    if "outputs (logits) alive" in notes:
        row.fields["keeps_outputs"] = True
    if ASYNC_TP.search(f"{notes} {kernels}"):
        row.fields["tensor_parallel_overlap"] = True
    if every := EVERY_LAYER.search(notes):
        row.fields["activation_checkpointing"] = "full"
        row.fields["recompute_method"], row.fields["recompute_num_layers"] = "every", int(every.group(1))
    if "activation offloading" in notes and cells["activation_checkpointing"] == "full":
        row.fields["activation_checkpointing"] = "offload"


def _batch(cells: Mapping[str, str], row: Settings) -> None:
    """Read the length of the sequences: full, or variable with a stated mean, or variable and unknown."""
    packed = cells["packing"].lower()
    if packed == "true":
        row.fields["packing"] = True
    if cells["seq_len"]:
        row.fields["seq_len"] = cells["seq_len"]
        row.lengths = CUT_OFF if packed == "false" else FULL
    elif mean := mean_of(cells["notes"]):
        row.fields.update(varied_lengths(cells, mean))
        row.lengths = MEAN
    else:
        row.guess("seq_len", DEFAULT_SEQ_LEN)


def _gpus(cells: Mapping[str, str], row: Settings) -> None:
    if not cells["gpu"]:
        raise FieldError("The row does not name its GPU.")
    row.fields["gpu"] = cells["gpu"]
    count = _whole(cells["num_gpus"], "num_gpus") if cells["num_gpus"] else 1
    if not cells["num_gpus"]:
        row.assumptions.append("num_gpus=1 (not stated)")
    divided = parallelism(cells["parallelism"], count)
    row.fields.update(divided)
    row.fields["num_gpus"] = count
    if count > 1 and not cells["parallelism"]:
        row.assumptions.append("data parallel (DDP): the division of the work is not stated")
    spec = known_gpu(cells["gpu"])
    node = spec.node_gpus if spec is not None and spec.node_gpus else GPUS_PER_NODE
    if MULTINODE.search(cells["notes"]) and 1 < count <= node and count % 2 == 0:
        row.fields["num_nodes"] = 2
        row.defaults.append("num_nodes=2 (several nodes, how many is not stated)")
    elif count > node and count % node == 0:
        row.fields["num_nodes"] = count // node
        row.defaults.append(f"num_nodes={count // node} ({node} GPUs a node)")
    cards, of_a_gpu = NETWORK.search(cells["notes"]), NETWORK_OF_A_GPU.search(cells["notes"])
    if cards:
        row.fields["node_network_gbit_per_s"] = int(cards.group(1)) * int(cards.group(2))
    elif of_a_gpu and "num_nodes" in row.fields:
        per_node = count // row.fields["num_nodes"]
        row.fields["node_network_gbit_per_s"] = int(of_a_gpu.group(1)) * per_node
    offload = cells["cpu_offload"].lower()
    if offload not in ("", "false", "none"):
        row.fields["cpu_offload"] = offload


def _adapters(cells: Mapping[str, str], row: Settings) -> None:
    if cells["lora_rank"]:
        row.fields["lora_rank"] = cells["lora_rank"]
    elif "lora_rank" not in row.fields:
        row.guess("lora_rank", 16)
    words = [word for word in re.split(r"[\s,;+]+", cells["lora_targets"]) if word]
    if words:
        row.fields["lora_targets"] = _targets(words, row.fields["model"])
    elif "lora_targets" not in row.fields:
        row.guess("lora_targets", ("all-linear",))
    if "adapter_dtype" not in row.fields:
        row.guess("adapter_dtype", "fp32", "as PEFT does")


def _targets(words: list[str], model: str) -> tuple[str, ...]:
    from finegauge.catalogue.models import model as find

    names = [name for word in words for name in PROJECTIONS.get(word.lower().replace("-", "_"), (word,))]
    if str(find(model).config.get("model_type")) in FUSED_ATTENTION and SPLIT_NAMES & set(names):
        names.append("attention")  # a source that prints Llama's names for every model
    return tuple(dict.fromkeys(names))


def _mixed_precision(row: Settings) -> None:
    """Keep fp32 parameters where a trainer does: autocast over sharded full fine-tuning.

    accelerate upcasts the parameters that FSDP trains under mixed precision to fp32, so that its
    mixed precision, not the weights' file, decides what the shards hold.
    """
    fields = row.fields
    if fields["method"] == "full" and mixes_under_fsdp(fields) and fields.get("weights_dtype") != "fp32":
        fields["weights_dtype"] = "fp32"
        row.defaults.append("weights_dtype=fp32 (FSDP mixed precision keeps fp32 shards)")


def _without_bf16(row: Settings) -> None:
    """Take fp16 for bf16 that nobody stated where the GPU has no such products (Volta, Turing)."""
    found = known_gpu(row.fields["gpu"])
    if found is None or "bf16" in found.flops_per_s or "fp16" not in found.flops_per_s:
        return
    for name in ("weights_dtype", "autocast", "adapter_dtype"):
        if row.fields.get(name) == "bf16":
            row.fields[name] = "fp16"
            row.defaults.append(f"{name}=fp16 ({found.name} has no bf16)")


def _global_batch(cells: Mapping[str, str], row: Settings) -> None:
    """Take the micro-batches of a step from its sequences, where a row states only these."""
    stated = GLOBAL_BATCH.search(cells["notes"])
    if stated is None or cells["gradient_accumulation_steps"]:
        return
    fields, divided = row.fields, 1
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        divided *= int(fields.get(name, 1))
    at_once = int(fields["micro_batch_size"]) * max(1, fields["num_gpus"] // divided)
    steps, rest = divmod(int(stated.group(1)), at_once)
    if steps and not rest:
        fields["gradient_accumulation_steps"] = steps
        note = next((a for a in row.assumptions if a.startswith("gradient_accumulation_steps")), None)
        if note:
            row.assumptions.remove(note)
        row.defaults.append(f"gradient_accumulation_steps={steps} ({stated.group()})")


def _model(name: str, hf_config: str, folder: str) -> str:
    """Return what the catalogue or a file calls the model of a row.

    The configuration beside the table wins over the catalogue, and the name in `hf_config` over
    `model`, which may name a quantised copy.
    """
    from finegauge.catalogue.models import model as find

    if hf_config.startswith("{"):
        return stated_sizes(hf_config)
    if hf_config and FILE_NAME.fullmatch(hf_config):
        for above in (folder, os.path.join(folder, os.pardir)):
            path = os.path.normpath(os.path.join(above, "hf_configs", f"{hf_config}.json"))
            if os.path.isfile(path):
                find(path)
                return path
    bare = re.sub(r"\s*\(.*?\)", "", name).strip()
    candidates = (hf_config.replace("__", "/", 1), name, bare, QUANTISED_COPY.sub("", bare))
    for candidate in dict.fromkeys(c for c in candidates if c):
        if candidate.startswith(("/", ".", "~")) or len(candidate) > 200:
            continue  # a table names models, never files of the machine that reads it
        try:
            return find(candidate).name
        except UnknownNameError:
            continue
    if not name and not hf_config:
        raise FieldError("The row names no model.")
    sibling = _sibling(bare)
    if sibling:
        return sibling
    find(bare.lstrip("/.~") or hf_config)  # says what comes close
    raise FieldError(f"No model {shown(name)} is known.")


def stated_sizes(text: str) -> str:
    """Return the path of a configuration that a row states as JSON, kept in the cache."""
    from hashlib import sha256

    from finegauge.catalogue.models import model as find

    if not isinstance(sizes := parse_json(text, "hf_config"), dict):
        raise FieldError("hf_config holds no sizes of a model; write its config.json as one line.")
    path = cache_path("configs", f"{sha256(text.encode()).hexdigest()[:16]}.json")
    if not os.path.isfile(path):
        write_document(sizes, path)
    find(path)
    return path


def _sibling(name: str) -> str:
    """Return the catalogue's model that differs from `name` in its tuning alone; "" if none does.

    A chat model has the architecture of its base model; where two candidates differ, none is taken.
    """
    from finegauge.catalogue.models import models

    stem = _stem(name)
    found = [figures for figures in models().values() if _stem(figures.name) == stem]
    if not stem or not found or any(figures.config != found[0].config for figures in found):
        return ""
    return found[0].name


def _stem(name: str) -> str:
    """Return the last part of a model's name without what tuning or packaging adds to it."""
    return TUNED.sub("", QUANTISED_COPY.sub("", name.lower().rpartition("/")[2]))


def _whole(cell: str, column: str) -> int:
    try:
        figure = float(cell)
        if figure == int(figure) and 1 <= figure <= 1_000_000:
            return int(figure)
    except (ValueError, OverflowError):
        pass
    raise FieldError(f"{column}={shown(cell)} is not a whole number from 1 to 1,000,000.")


def _short(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:120]
