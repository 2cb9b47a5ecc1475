"""What transformers" own classes keep and compute, per layer and token: the truth for the graph.

Traced 2026-11-21 with transformers 5.23.0, PEFT 0.21.2 and torch 2.13.0 (models built from the
configs below, two layers minus one, B=2, S=256): saved bytes by saved_tensors_hooks over unique
storages without parameters, FLOPs by FlopCounterMode with a formula for grouped_mm and for causal
flash attention (half of the pairs; 2.5 times that backward). State-space kernels were one operator
that keeps what mamba_ssm"s CUDA kernel keeps; inside it no FLOPs were counted ("-").
"""

from pathlib import Path
from typing import Any, NamedTuple

from finegauge.model.graph import build
from finegauge.model.op import Extents, Op
from finegauge.run.run import Run

SEQUENCES, SEQ_LEN = 2, 256
TOKENS = SEQUENCES * SEQ_LEN
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 8},
    "llama_gqa": {"model_type": "llama", "num_key_value_heads": 2},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 128},
    "gemma": {"model_type": "gemma", "num_key_value_heads": 8, "head_dim": 64},
    "gemma2": {
        "model_type": "gemma2",
        "num_key_value_heads": 4,
        "head_dim": 64,
        "layer_types": ["full_attention"],
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 4,
        "head_dim": 64,
        "layer_types": ["full_attention"],
    },
    "phi3": {"model_type": "phi3", "num_key_value_heads": 8},
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 8},
    "gpt_neox": {"model_type": "gpt_neox", "intermediate_size": 2048},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_layer": 1,
        "n_head": 8,
        **dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0),
    },
    "opt": {"model_type": "opt", "ffn_dim": 2048, "word_embed_proj_dim": 512, "dropout": 0.0},
    "mixtral": {"model_type": "mixtral", "num_key_value_heads": 2},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 256,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 512,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 2,
    },
    "olmoe": {
        "model_type": "olmoe",
        "intermediate_size": 256,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "intermediate_size": 256,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": ["full_attention"],
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        "moe_intermediate_size": 256,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 2,
        "first_k_dense_replace": 0,
        "num_key_value_heads": 8,
        "q_lora_rank": 128,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 256,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 0,
        "num_key_value_heads": 8,
        "q_lora_rank": 128,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
    "mamba": {"model_type": "mamba", "intermediate_size": 1024, "state_size": 16},
    "mamba2": {
        "model_type": "mamba2",
        "state_size": 64,
        "num_heads": 16,
        "head_dim": 64,
        "n_groups": 2,
        "chunk_size": 64,
    },
    "jamba": {
        "model_type": "jamba",
        "attn_layer_period": 1000,
        "attn_layer_offset": 999,
        "expert_layer_offset": 999,
        "num_experts": 8,
        "num_key_value_heads": 8,
        "expert_layer_period": 1000,
    },
    "bamba": {
        "model_type": "bamba",
        "num_key_value_heads": 2,
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
        "mamba_chunk_size": 64,
        "attn_layer_indices": [],
    },
    "granitemoehybrid": {
        "model_type": "granitemoehybrid",
        "intermediate_size": 256,
        "shared_intermediate_size": 512,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
        "mamba_chunk_size": 64,
        "mamba_n_groups": 1,
        "layer_types": ["mamba"],
    },
}

QV, ALL = ("q_proj", "v_proj"), ("all-linear",)


class Traced(NamedTuple):
    """One layer as traced; `fields` are those of Run that differ from full bf16 fine-tuning."""

    model: str
    attention: str
    fields: dict[str, Any]
    saved_bytes_per_token: float
    forward_flops_per_token: float | None
    backward_flops_per_token: float | None

    @property
    def name(self) -> str:
        """Return what tells this row from the others."""
        return " ".join([self.model, self.attention, *(str(value) for value in self.fields.values())])

    def ops(self, folder: Path) -> tuple[Op, ...]:
        """Return FineGauge"s operators of the same layer; the config is written into `folder`."""
        import json

        config = folder / "config.json"
        figures = {**SIZES, **MODELS[self.model]}
        method: dict[str, Any] = {"method": "full"}
        if "lora_targets" in self.fields:  # below the first layer gradients end
            method = {"method": "lora", "lora_rank": 8}
            figures |= {"num_hidden_layers": 2}
            figures |= {"layer_types": figures["layer_types"] * 2} if "layer_types" in figures else {}
        config.write_text(json.dumps(figures))
        run = Run(model=str(config), attention=self.attention, **{**method, **self.fields})
        return build(run).layers[-1].ops


EXTENTS = Extents.of(SEQUENCES, SEQ_LEN)
TRACED = [
    Traced("llama", "flash", {}, 23_592, 6_684_672, 13_500_416),
    Traced("llama_gqa", "flash", {}, 22_056, 5_898_240, 11_927_552),
    Traced("qwen2", "flash", {}, 22_056, 5_898_240, 11_927_552),
    Traced("qwen3", "flash", {}, 32_336, 7_471_104, 15_204_352),
    Traced("gemma", "flash", {}, 25_648, 6_684_672, 13_500_416),
    Traced("gemma2", "flash", {}, 32_832, 6_160_384, 12_451_840),
    Traced("gemma3", "flash", {}, 39_025, 6_160_384, 12_451_840),
    Traced("phi3", "flash", {}, 25_640, 6_684_672, 13_500_416),
    Traced("olmo2", "flash", {}, 33_840, 6_684_672, 13_500_416),
    Traced("gpt_neox", "flash", {}, 17_456, 6_553_600, 13_238_272),
    Traced("gpt2", "flash", {}, 28_720, 6_553_600, 13_238_272),
    Traced("opt", "flash", {}, 12_328, 6_553_600, 13_238_272),
    Traced("mixtral", "flash", {}, 37_532.062, 10_231_808, 20_594_688),
    Traced("qwen3_moe", "flash", {}, 31_256.125, 4_734_976, 9_601_024),
    Traced("qwen2_moe", "flash", {}, 32_498.125, 6_308_864, 12_748_800),
    Traced("olmoe", "flash", {}, 35_064.125, 5_521_408, 11_173_888),
    Traced("gpt_oss", "flash", {}, 35_544.125, 4_734_976, 9_601_024),
    Traced("deepseek_v2", "flash", {}, 39_744.125, 6_209_536, 12_615_680),
    Traced("deepseek_v3", "flash", {}, 37_812.125, 5_423_104, 11_042_816),
    Traced("mamba", "flash", {}, 11_220, None, None),
    Traced("mamba2", "flash", {}, 10_792.25, None, None),
    Traced("jamba", "flash", {}, 37_156, 7_823_360, 15_720_448),
    Traced("bamba", "flash", {}, 25_900.25, None, None),
    Traced("granitemoehybrid", "flash", {}, 27_000.312, None, None),
    Traced("llama", "eager", {}, 35_848, 6_946_816, 13_893_632),
    Traced("qwen2", "eager", {}, 35_848, 6_160_384, 12_320_768),
    Traced("phi3", "eager", {}, 35_848, 6_946_816, 13_893_632),
    Traced("mixtral", "eager", {}, 51_324.062, 10_493_952, 20_987_904),
    Traced("deepseek_v3", "sdpa", {}, 36_788.125, 5_357_568, 10_878_976),
    Traced("llama_gqa", "flash", {"lora_targets": QV, "adapter_dtype": "bf16"}, 16_200, 5_924_864, 6_344_704),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": QV, "adapter_dtype": "bf16", "lora_dropout": 0.1},
        18_248,
        5_924_864,
        6_344_704,
    ),
    Traced(
        "llama_gqa", "flash", {"lora_targets": ALL, "adapter_dtype": "bf16"}, 20_120, 6_043_648, 6_582_272
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "bf16", "lora_dropout": 0.1},
        28_696,
        6_043_648,
        6_582_272,
    ),
    Traced("llama_gqa", "flash", {"lora_targets": QV, "adapter_dtype": "fp32"}, 19_304, 5_924_864, 6_344_704),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": QV, "adapter_dtype": "fp32", "lora_dropout": 0.1},
        20_328,
        5_924_864,
        6_344_704,
    ),
    Traced(
        "llama_gqa", "flash", {"lora_targets": ALL, "adapter_dtype": "fp32"}, 33_288, 6_043_648, 6_582_272
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "fp32", "lora_dropout": 0.1},
        37_768,
        6_043_648,
        6_582_272,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": QV, "adapter_dtype": "fp32", "autocast": "bf16"},
        17_276,
        5_924_864,
        6_344_704,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": QV, "adapter_dtype": "fp32", "lora_dropout": 0.1, "autocast": "bf16"},
        18_300,
        5_924_864,
        6_344_704,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": QV, "adapter_dtype": "fp32", "weights_dtype": "fp32", "autocast": "bf16"},
        28_284,
        5_924_864,
        6_344_704,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "fp32", "autocast": "bf16"},
        24_500,
        6_043_648,
        6_582_272,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "fp32", "lora_dropout": 0.1, "autocast": "bf16"},
        28_980,
        6_043_648,
        6_582_272,
    ),
    Traced(
        "llama_gqa",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "fp32", "weights_dtype": "fp32", "autocast": "bf16"},
        35_508,
        6_043_648,
        6_582_272,
    ),
    Traced(
        "llama_gqa", "flash", {"weights_dtype": "fp32", "autocast": "bf16"}, 38_184, 5_898_240, 11_927_552
    ),
    Traced("llama_gqa", "flash", {"weights_dtype": "fp32"}, 39_976, 5_898_240, 11_927_552),
    Traced(
        "mixtral", "flash", {"lora_targets": QV, "adapter_dtype": "fp32"}, 29_916.062, 10_258_432, 10_678_272
    ),
    # fused experts adapted: PEFT keeps W + B·A whole, here shared by 512 tokens
    Traced(
        "mixtral",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "bf16"},
        103_180.562,
        12_087_424,
        21_192_960,
    ),
    Traced(
        "mixtral",
        "flash",
        {"lora_targets": ALL, "adapter_dtype": "fp32"},
        112_524.062,
        12_087_424,
        21_192_960,
    ),
    Traced(
        "qwen3_moe", "flash", {"lora_targets": ALL, "adapter_dtype": "fp32"}, 61_240.125, 5_443_840, 9_052_672
    ),
    Traced("qwen3", "flash", {"lora_targets": ALL, "adapter_dtype": "fp32"}, 43_056, 7_636_992, 8_589_312),
    Traced("gemma2", "flash", {"lora_targets": ALL, "adapter_dtype": "fp32"}, 37_920, 6_309_888, 6_852_608),
    Traced("phi3", "flash", {"lora_targets": ALL, "adapter_dtype": "fp32"}, 30_632, 6_817_792, 7_344_128),
    Traced(
        "gpt_neox",
        "flash",
        {"lora_targets": ("query_key_value",), "adapter_dtype": "fp32"},
        13_392,
        6_586_368,
        7_012_352,
    ),
    Traced(
        "deepseek_v3",
        "flash",
        {"lora_targets": ("q_a_proj", "o_proj"), "adapter_dtype": "fp32"},
        27_380.125,
        5_449_728,
        6_066_176,
    ),
]
