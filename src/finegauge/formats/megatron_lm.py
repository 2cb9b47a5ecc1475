"""Megatron-LM's arguments, hidden defaults included.

What no argument says but the framework does (from megatron/training/arguments.py, core 0.12): fp32 unless
`bf16` or `fp16` is given, then low weights with fp32 master copies; DDP unless the distributed optimizer or
FSDP shards; fused Adam; TransformerEngine's flash attention; one micro-batch a step and rank unless
`global_batch_size` says more. The model is stated by its sizes: it is the catalogue's where one has them all,
else its configuration is written into the cache.
"""

import os
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from finegauge.catalogue.models import model, models, named_like
from finegauge.documents import cache_path, write_document
from finegauge.errors import FieldError, FineGaugeError, shown
from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, read_degrees
from finegauge.run.field import names, number, whole
from finegauge.run.rules import COMPARING, MODEL_DEGREES

_SIZES = ("num_layers", "hidden_size", "num_attention_heads")
_HF_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_SHAPE = (
    "ffn_hidden_size num_query_groups group_query_attention kv_channels swiglu vocab_size extra_vocab_size "
    "untie_embeddings_and_output_weights position_embedding_type use_rotary_position_embeddings "
    "normalization add_qkv_bias qk_layernorm num_experts moe_router_topk moe_ffn_hidden_size tokenizer_model "
    "max_position_embeddings tokenizer_type patch_tokenizer_type pad_vocab_size_to padded_vocab_size"
)
_OTHER_MODELS = (
    "multi_latent_attention", "moe_shared_expert_intermediate_size", "hybrid_override_pattern",
    "hybrid_layer_pattern", "spec"
)  # fmt: skip
DEGREES = {
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
}
_EXPERT_TENSOR = "expert_tensor_parallel_size"  # of which 1 says something, where tensor_parallel is more
_ZERO = ("zero_stage", "deepspeed_config", "deepspeed")
_FSDP = ("use_torch_fsdp2", "use_custom_fsdp", "use_megatron_fsdp")
_LAYOUT = "pipeline_model_parallel_layout"
_CAPACITY = (
    "moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop_policy "
    "moe_train_capacity_factor disable_moe_token_dropping"
)
_REPEATED = re.compile(r"(\([^()]*\)|[^()*\d])\*(\d{1,3})")
MOST_OF_A_LAYOUT = 10_000  # characters, written out
_RECOMPUTE = ("recompute_granularity", "recompute_activations", "checkpoint_activations")
_CHUNKS = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "GPTSentencePieceTokenizer": 32000}
_PATCHES = {
    "Qwen2Tokenizer": 151_643,
    "LLama2Tokenizer": 32_000,
    "LLama3Tokenizer": 128_000,
}  # of Pai-Megatron
TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}


_OF_MINDSPEED = ("lora_r", "lora_alpha", "lora_dropout")  # MindSpeed-LLM's, of Ascend


def _read_model(reading: Reading) -> None:
    if reading.text("recipe_degrees") == "unknown":
        reading.warn(
            f"The degrees that the recipe of {reading.get('recipe_model')} sets are not known: what is not "
            "stated over them is taken as 1, such as tensor_parallel."
        )
    named = reading.get("model")
    if named is not None:
        reading.set("model", named, "model")
    elif reading.stated("recipe_model"):
        stated = str(reading.get("recipe_model"))
        names_ = (stated, stated.replace("_vl_", "_"), str(reading.get("pretrained_checkpoint", "")))
        found = next(filter(None, map(named_like, names_)), None)
        if found is None:
            raise FieldError(
                f"{shown(stated)} is no model of the catalogue; add model=NAME, as 'finegauge models' has it."
            )
        _refuse_other_sizes(reading, found)
        reading.set("model", found, "recipe_model")
    elif reading.stated(_SIZES[0]) or (reading.stated(*_SIZES) and reading.stated(*_OTHER_MODELS)):
        other = next((name for name in _OTHER_MODELS if reading.stated(name)), None)
        if other is not None:
            raise FieldError(
                f"{other} makes a model whose sizes alone do not tell it; add model=NAME of the catalogue."
            )
        reading.set("model", _of_sizes(reading), *_SIZES)
    elif tokenizer := named_like(reading.text("tokenizer_model")):
        reading.warn(f"No sizes of a model are stated: taken as {tokenizer}, whose tokenizer it uses.")
        reading.set("model", tokenizer, "tokenizer_model")
    if "model" not in reading.fields:
        raise FieldError(
            f"{reading.file_name} states neither the sizes of a model (num_layers, hidden_size, ...) nor its "
            "name; add model=NAME."
        )


def _refuse_other_sizes(reading: Reading, name: str) -> None:
    """Raise where a script sets sizes over the recipe's model that make another of it."""
    config = model(name).config
    for size, key_ in zip((*_SIZES, "num_moe_experts"), (*_HF_SIZES, "num_experts"), strict=True):
        usual = config.get(key_)
        if reading.stated(size) and usual is not None and str(reading.get(size)) != str(usual):
            raise FieldError(
                f"{size}={reading.text(size)} makes another model of {name}, which has {usual}; add "
                "model=PATH of its config.json."
            )


def _of_sizes(reading: Reading) -> str:
    """Return the model of the catalogue that has the sizes, else the path of a configuration that has."""
    config = _config(reading)
    keys = [name for name in config if name not in ("vocab_size", "max_position_embeddings", "architectures")]
    tokens, tokenizer = config["vocab_size"], str(reading.get("tokenizer_model", ""))
    found = [
        row.name
        for row in models().values()
        if abs(int(row.config.get("vocab_size") or 0) - tokens) <= 0.01 * tokens
        and all(row.config.get(name, config[name]) == config[name] for name in keys)
    ]
    if found and config["model_type"] != "gpt2":
        return min(found, key=lambda name: (name != tokenizer, len(name)))
    return written_config(config)


def _config(reading: Reading) -> dict[str, Any]:
    """Return the configuration, under Hugging Face's names, of the family that has such layers."""

    def size(name: str, default: int) -> int:
        return reading.whole(name, default, 10**7)

    layers, width, heads = (reading.whole(name, 0) for name in _SIZES)
    gated, experts = reading.flag("swiglu"), reading.stated("num_experts")
    groups = size("num_query_groups", heads) if reading.flag("group_query_attention") else heads
    rotary = (
        reading.flag("use_rotary_position_embeddings") or reading.text("position_embedding_type") == "rope"
    )
    usual = int(width * 4 * 2 / 3 / 64) * 64 if gated else 4 * width
    inner = size("ffn_hidden_size", usual)
    stated = reading.stated("vocab_size")
    vocabulary = size("vocab_size", 50257) if stated else _vocabulary(reading)
    shape: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": size("max_position_embeddings", 4096),
        "tie_word_embeddings": not reading.flag("untie_embeddings_and_output_weights"),
    }
    if reading.stated("kv_channels"):
        shape["head_dim"] = size("kv_channels", 128)
    if experts:
        qwen = reading.flag("qk_layernorm")  # else Mixtral's
        return shape | {
            "model_type": "qwen3_moe" if qwen else "mixtral",
            "num_experts" if qwen else "num_local_experts": size("num_experts", 8),
            "num_experts_per_tok": size("moe_router_topk", 2),
            "moe_intermediate_size" if qwen else "intermediate_size": size("moe_ffn_hidden_size", inner),
        }
    if gated:
        kind = (
            "qwen3" if reading.flag("qk_layernorm") else "qwen2" if reading.flag("add_qkv_bias") else "llama"
        )
        return shape | {"model_type": kind}
    if rotary:
        return shape | {"model_type": "gpt_neox" if groups == heads else "nemotron"}
    names_ = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner, "n_positions": 4096}
    return names_ | {"model_type": "gpt2", "vocab_size": vocabulary, "hidden_size": width}


def _vocabulary(reading: Reading) -> int:
    """Return the size of the vocabulary that the tokenizer has, padded as Megatron pads it."""
    for padded in ("pad_vocab_size_to", "padded_vocab_size"):  # of Megatron-DeepSpeed, of MindSpeed-LLM
        if reading.stated(padded):
            return reading.whole(padded, most=10**7)
    kind, named = str(reading.get("tokenizer_type", "")), str(reading.get("tokenizer_model", ""))
    size, patch = _VOCABULARIES.get(kind), _PATCHES.get(str(reading.get("patch_tokenizer_type", "")))
    if patch:
        return patch + reading.whole("extra_vocab_size", 0, 10**6, 0)
    if size is None and named:
        try:
            size = int(model(named_like(named) or named).config.get("vocab_size") or 0) or None
        except FineGaugeError:
            size = None
    if size is None:
        reading.warn("The size of the vocabulary is not told: taken as 50,257; vocab_size=… says another.")
    return -(-(size or 50257) // 128) * 128


def written_config(config: Mapping[str, Any], width: str = "hidden_size") -> str:
    """Return the path in the cache of a model's configuration, written if it is not there."""
    import hashlib
    import json

    text = json.dumps(config, sort_keys=True)
    name = f"{config['model_type']}-{config[width]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path = cache_path("models", name)
    if not os.path.isfile(path):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_document(config, path)
        except OSError as error:
            raise FieldError(
                f"The model's sizes cannot be kept in {path} ({error.strerror}); add model=NAME."
            ) from None
    return path


def _read_method(reading: Reading) -> None:
    of_mindspeed = reading.stated("lora_r")
    scheme = "lora" if of_mindspeed else reading.text("peft_scheme", "none")
    if scheme not in ("none", "null", "", "lora", "dora"):
        raise FieldError(f"peft={shown(scheme)} is not supported; use lora, dora or none.")
    adapts = scheme in ("lora", "dora")
    reading.set("adapter", scheme if adapts else None, "peft_scheme")
    reading.set("method", "lora" if adapts else "full", "peft_scheme", "lora_r")
    told = reading.which("command", "stage")
    trains = reading.text(told, "sft" if of_mindspeed else "pretrain")
    reading.set("phase", trains if trains in (*COMPARING, "pretrain") else "sft", told)
    low = "bf16" if reading.flag("bf16") else "fp16" if reading.flag("fp16") else "fp32"
    reading.set("weights_dtype", low, "bf16", "fp16")
    reading.set("autocast", "none")
    if adapts:
        keys = _OF_MINDSPEED if of_mindspeed else ("peft_dim", "peft_alpha", "peft_dropout")
        trainer_keys.read_ranks(reading, keys, (32, 32, 0.0))
        named = reading.which("peft_target_modules", "lora_target_modules")
        stated = names(named, reading.get(named) or tuple(TARGETS))
        reading.set("lora_targets", [t for n in stated for t in TARGETS.get(n, (n,))], named)
        reading.set("adapter_dtype", low, "bf16")
    recompute = reading.text(
        "recompute_granularity", "selective" if reading.flag("recompute_activations") else "none"
    )
    if recompute not in ("none", "null", "selective", "full"):
        raise FieldError(f"recompute_granularity={shown(recompute)} is unknown; use full or selective.")
    recompute = "none" if recompute == "null" else recompute
    if reading.flag("checkpoint_activations"):  # before Megatron-LM 3, and in Megatron-DeepSpeed
        recompute = "full"
    reading.set("activation_checkpointing", recompute, *_RECOMPUTE)
    if recompute == "full":
        layers = reading.which("recompute_num_layers", "checkpoint_num_layers")
        reading.set("recompute_num_layers", _stated(reading, layers), layers)
        reading.set("recompute_method", _stated(reading, "recompute_method"), "recompute_method")
    elif recompute == "selective":
        reading.set("recompute_modules", _stated(reading, "recompute_modules"), "recompute_modules")
    _read_optimizer_precision(reading)
    if str(reading.get("fp8_format", reading.get("fp8", "none"))).lower() not in ("none", "null", "false"):
        reading.set("fp8", True, "fp8_format", "fp8")
        reading.take("fp8_recipe", "fp8_recipe")


def _read_packing(reading: Reading) -> None:
    """Read how samples lie in rows: one behind the other to pre-train, as the recipe says to fine-tune."""
    packed = reading.flag("packed_sequence", default=True)
    stated = reading.stated("packed_sequence")
    reading.set("packing", packed, "packed_sequence")
    reading.set("packing_strategy", "first_fit" if stated else "wrapped", "packed_sequence")
    padding = "max" if not stated else "free" if packed else "longest"
    reading.set("padding", padding, "packed_sequence")


def _stated(reading: Reading, name: str) -> Any:
    """Return what an argument states; None where it says none."""
    value = reading.get(name)
    return None if str(value).lower() in ("none", "null", "") else value


def _read_optimizer_precision(reading: Reading) -> None:
    """Read the formats of gradients, moments and copies of weights (precision-aware from core 0.13 on)."""
    if reading.flag("grad_reduce_in_bf16"):
        reading.set("gradient_dtype", "bf16", "grad_reduce_in_bf16")
    if not reading.flag("use_precision_aware_optimizer"):
        return
    for name, field in (("main_grads_dtype", "gradient_dtype"), ("exp_avg_dtype", "moments_dtype")):
        stated = _stated(reading, name)
        if stated is not None:
            reading.set(field, str(stated).removeprefix("torch."), name)
    kept = str(reading.get("main_params_dtype", "fp32")).removeprefix("torch.")
    whole_copy = kept in ("fp32", "float32") and reading.flag("store_param_remainders", default=True)
    reading.set(
        "master_dtype", "remainder" if whole_copy else kept, "main_params_dtype", "store_param_remainders"
    )


def _need_experts_ranks(reading: Reading) -> None:
    """Take as many GPUs as divide the experts, who share the data ranks, where nobody says how many."""
    if reading.launched_gpus is not None or "expert_parallel" not in reading.fields:
        return
    divided = ("expert_parallel", "expert_tensor_parallel", "pipeline_parallel")
    least = prod(int(whole(1, 10**6)(name, reading.fields.get(name, 1))) for name in divided)
    others = prod(int(whole(1, 10**6)(name, reading.fields.get(name, 1))) for name in MODEL_DEGREES)
    if least > others:
        reading.launched_gpus = others * -(-least // others)
        reading.set("num_gpus", reading.launched_gpus)
        reading.warn(
            "How many GPUs is the launcher's to say: taken as the smallest that expert_parallel allows; "
            "add num_gpus=8 for eight."
        )


def _read_capacity(reading: Reading) -> None:
    """Read how many rows each expert computes; Megatron-DeepSpeed pads to its capacity unless it drops none.

    Unpadded, a capacity of an even share or more drops what no even routing sends.
    """
    of_core = _stated(reading, "moe_expert_capacity_factor")
    factor = of_core if of_core is not None else _stated(reading, "moe_train_capacity_factor")
    if factor is None or reading.flag("disable_moe_token_dropping"):
        return
    padded = of_core is None or reading.flag("moe_pad_expert_input_to_capacity")
    factor = number(0.01, 1000.0)("moe_expert_capacity_factor", factor)
    if padded or factor < 1.0:
        reading.set("expert_capacity_factor", factor, *_CAPACITY.split())


def _read_evaluation(reading: Reading) -> None:
    """Read the evaluations, each of as many batches as `eval_iters` says."""
    if not reading.stated("eval_interval", "eval_iters"):
        return
    micro = int(whole(1, 10**6)("micro_batch_size", reading.fields.get("micro_batch_size", 1)))
    ranks = reading.data_ranks(reading.launched_gpus) or 1
    batch = reading.whole("global_batch_size", micro * ranks, 10**9)
    reading.set("eval_samples", reading.whole("eval_iters", 100, 10**6, 0) * batch, "eval_iters")
    reading.set("eval_steps", reading.whole("eval_interval", 1000, 10**9), "eval_interval")
    reading.set("eval_batch_size", micro)


def _read_parallelism(reading: Reading) -> None:
    nodes = reading.whole("num_nodes", 1)
    each = next(
        (reading.get(name) for name in ("num_gpus_per_node", "devices") if reading.stated(name)), None
    )
    if each is not None and str(each) not in ("-1", "auto"):
        reading.set(
            "num_gpus", nodes * whole(1, 10**5)("devices", each), "num_gpus_per_node", "devices", "num_nodes"
        )
        reading.launched_gpus = reading.launched_gpus or whole(1, 10**6)(
            "num_gpus", reading.fields["num_gpus"]
        )
        if nodes > 1:
            reading.set("num_nodes", nodes, "num_nodes")
    read_degrees(reading, DEGREES)
    reading.set("expert_tensor_parallel", _stated(reading, _EXPERT_TENSOR), _EXPERT_TENSOR)
    _need_experts_ranks(reading)
    if reading.flag("sequence_parallel") and "tensor_parallel" in reading.fields:
        reading.set("sequence_parallel", True, "sequence_parallel")
    if reading.flag("tp_comm_overlap"):
        reading.set("tensor_parallel_overlap", True, "tp_comm_overlap")
    stages = int(whole(1, 10**6)("pipeline", reading.fields.get("pipeline_parallel", 1)))
    if stages > 1:
        _read_chunks(reading, stages)
    _read_sharding(reading)
    if reading.flag("overlap_moe_expert_parallel_comm"):
        reading.set("expert_parallel_overlap", True, "overlap_moe_expert_parallel_comm")
    _read_capacity(reading)
    if reading.flag("optimizer_cpu_offload"):
        reading.set("cpu_offload", "optimizer", "optimizer_cpu_offload")
    if reading.stated("train_samples"):
        micro = whole(1, 10**6)("micro_batch_size", reading.fields.get("micro_batch_size", 1))
        unasked = micro * (reading.data_ranks(reading.launched_gpus) or 1)
        samples, batch = (
            reading.whole("train_samples", most=10**13),
            reading.whole("global_batch_size", unasked),
        )
        reading.set("max_steps", max(1, samples // batch), "train_samples")
    if reading.stated("global_batch_size"):
        reading.set_accumulation("global_batch_size", data_parallel=reading.data_ranks(reading.launched_gpus))


def _read_sharding(reading: Reading) -> None:
    """Read who shards: FSDP, DeepSpeed's ZeRO (of Megatron-DeepSpeed) or the distributed optimizer."""
    shards = "fsdp" if any(map(reading.flag, _FSDP)) else "none"
    if reading.flag("deepspeed") and reading.stated(_ZERO[0]):
        stage = reading.whole(_ZERO[0], most=3, least=0)
        shards = f"zero{stage}" if stage else "none"
    elif reading.flag("deepspeed"):
        trainer_keys.read_zero(reading, _ZERO[1])
        shards = str(reading.fields["sharding"])
    distributed = reading.flag("use_distributed_optimizer", default=reading.format.name != FORMAT.name)
    kind = "zero1" if shards == "none" and distributed else shards
    reading.set("sharding", kind, *_FSDP, *_ZERO, "use_distributed_optimizer")
    reading.set("save_optimizer", not reading.flag("no_save_optim"), "no_save_optim")


def _read_chunks(reading: Reading, stages: int) -> None:
    counts = {f"account_for_{end}_in_pipeline_split": end for end in ("embedding", "loss")}
    reading.set("counted_as_layers", [end for name, end in counts.items() if reading.flag(name)], *counts)
    for end in ("first", "last"):
        for name in (f"num_layers_in_{end}_pipeline_stage", f"decoder_{end}_pipeline_num_layers"):
            reading.set(f"{end}_stage_layers", _stated(reading, name), name)
    if reading.stated(_CHUNKS[0]):
        layers = reading.whole("num_layers", stages)
        each = reading.whole(_CHUNKS[0])
        reading.set("virtual_pipeline_stages", max(1, layers // stages // each), _CHUNKS[0])
    for name in (_CHUNKS[1], "virtual_pipeline_model_parallel_size"):
        if str(reading.get(name, "none")).lower() not in ("none", "null"):
            reading.take("virtual_pipeline_stages", name)
    if isinstance(layout := reading.get(_LAYOUT), str):
        _read_layout(reading, layout, stages)


def _read_layout(reading: Reading, layout: str, stages: int) -> None:
    """Set what a layout such as `Et*3|(tt|)*29,m|L` says: t is a layer, | ends a chunk of a stage.

    The grammar is PipelineParallelLayerLayout.parse_str_to_list of Megatron-Core's
    transformer/pipeline_parallel_layer_layout.py (read 2026-11-23). Stages between the ends count as even.
    """
    text = re.sub(r"[\s,]", "", layout)
    while (found := _REPEATED.search(text)) and len(text) < MOST_OF_A_LAYOUT:
        text = text[: found.start()] + found[1].strip("()") * int(found[2]) + text[found.end() :]
    chunks = text.split("|")
    if re.search("[^Etm|L]", text) or len(chunks) % stages:
        raise FieldError(
            f"{_LAYOUT}={shown(layout)} does not divide layers (E, t, m, L) into chunks of {stages} stages; "
            "write it as Et*3|(tt|)*29,m|L."
        )
    reading.set("virtual_pipeline_stages", len(chunks) // stages, _LAYOUT)
    for field, stage in (("first_stage_layers", 0), ("last_stage_layers", stages - 1)):
        layers = "".join(chunks[stage::stages]).count("t")
        reading.set(field, layers or None, _LAYOUT)


MODEL = Row(
    f"model recipe_model recipe_degrees num_moe_experts {_SHAPE} {' '.join((*_SIZES, *_OTHER_MODELS))}",
    _read_model,
)
METHOD = Row(
    "peft_scheme peft_dim peft_alpha peft_dropout peft_target_modules lora_target_modules command bf16 fp16 "
    f"{' '.join(_OF_MINDSPEED)} stage "
    f"{' '.join(_RECOMPUTE)} recompute_num_layers checkpoint_num_layers recompute_method "
    "recompute_modules fp8_format fp8 fp8_recipe grad_reduce_in_bf16 use_precision_aware_optimizer "
    "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype store_param_remainders",
    _read_method,
)
MICRO_BATCH = key("micro_batch_size", "micro_batch_size", 1)
ITERATIONS = key("train_iters", "max_steps", older="max_steps")
PARALLELISM = Row(
    f"num_nodes num_gpus_per_node devices {' '.join((*DEGREES, _EXPERT_TENSOR, *_FSDP, *_ZERO, *_CHUNKS))} "
    "sequence_parallel "
    "virtual_pipeline_model_parallel_size tp_comm_overlap use_distributed_optimizer "
    "overlap_moe_expert_parallel_comm account_for_embedding_in_pipeline_split "
    "account_for_loss_in_pipeline_split num_layers_in_first_pipeline_stage "
    "num_layers_in_last_pipeline_stage decoder_first_pipeline_num_layers "
    "decoder_last_pipeline_num_layers optimizer_cpu_offload global_batch_size train_samples "
    f"{_LAYOUT} {_CAPACITY} no_save_optim",
    _read_parallelism,
)
OPTIMIZER = key("optimizer", "optimizer", "adamw", more={"adam": "adamw"})
_FUSED = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "eager", "local": "eager"}
ATTENTION = key(
    "attention_backend",
    "attention",
    "flash",
    more=_FUSED | {f"attnbackend.{k}": v for k, v in _FUSED.items()},
)
KERNELS = fixed(
    **{"kernels": ["megatron"], "optimizer_implementation": "fused"},
    **{"experts_implementation": "grouped_mm", "checkpointing_reentrant": True},
)
_ROWS = (
    Row("moe_grouped_gemm moe_token_dispatcher_type make_vocab_size_divisible_by", lambda _: None),
    *(MODEL, METHOD, key("seq_length", "seq_len", 2048), MICRO_BATCH, ITERATIONS, PARALLELISM, OPTIMIZER),
    *(
        ATTENTION,
        KERNELS,
        Row("packed_sequence", _read_packing),
        Row("eval_interval eval_iters", _read_evaluation),
    ),
)
FORMAT = Format(
    "Megatron-LM", _ROWS, model_key="model", not_modelled="optimizer_offload_fraction", lists_its_keys=False
)
