"""Whole models with state spaces as traced, as `traced_models` has those without.

A fused kernel runs again to its end under checkpointing, and layers below the first with an
adapter may be of several kinds.
"""

from typing import Any

from tests.unit.model.traced_models import TracedModel

HYBRIDS: dict[str, dict[str, Any]] = {
    "mamba": {"model_type": "mamba", "state_size": 16},
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
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "intermediate_size": 192,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "ssm_state_size": 64,
        "n_groups": 1,
        "chunk_size": 64,
        "num_hidden_layers": 6,
        "hybrid_override_pattern": "M-M*-M",
        "head_dim": 64,
        "num_key_value_heads": 2,
    },
}
TRACED_HYBRIDS = [
    TracedModel(
        "mamba",
        "flash",
        {"activation_checkpointing": "full", "checkpointing_reentrant": False},
        (2, 256),
        6_248_452,
        5449449472,
        11002707968,
        4925161472,
    ),
    TracedModel(
        "mamba2",
        "flash",
        {"activation_checkpointing": "full", "checkpointing_reentrant": False},
        (2, 256),
        6_248_452,
        4385144832,
        8942256128,
        3860856832,
    ),
    TracedModel(
        "mamba2",
        "flash",
        {
            "activation_checkpointing": "full",
            "checkpointing_reentrant": False,
            "method": "lora",
            "lora_rank": 8,
            "lora_targets": ("in_proj",),
        },
        (2, 256),
        4_675_588,
        4431544320,
        6078070784,
        3907256320,
    ),
    TracedModel(
        "nemotron_h",
        "flash",
        {"activation_checkpointing": "full", "checkpointing_reentrant": False},
        (2, 256),
        7_823_364,
        7178027008,
        14552137728,
        4908908544,
    ),
    TracedModel(
        "jamba",
        "flash",
        {"method": "lora", "lora_rank": 8, "lora_targets": ("attention",)},
        (2, 256),
        17_797_140,
        8545894400,
        3986685952,
        0,
    ),
    TracedModel(
        "nemotron_h",
        "flash",
        {"method": "lora", "lora_rank": 8, "lora_targets": ("attention",)},
        (2, 256),
        10_250_276,
        7205289984,
        4011851776,
        0,
    ),
]
