"""What no model can be is refused in one sentence that names key and value."""

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.model.families import NOT_TRACED, architecture, beyond_causal_text, supported_model_types


@pytest.mark.parametrize("model_type", ["xlstm", "rwkv", "nothing-like-it"])
def test_types_that_are_not_described_are_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        architecture({"model_type": model_type})
    assert str(error.value).startswith(f"model_type '{model_type}' is not supported yet")
    assert "finegauge trace MODEL_DIR" in str(error.value)


@pytest.mark.parametrize("model_type", sorted(NOT_TRACED))
def test_types_that_could_not_be_traced_either_say_what_is_missing(model_type: str) -> None:
    missing, why = NOT_TRACED[model_type]
    with pytest.raises(UnsupportedError, match=why) as error:
        architecture({"model_type": model_type})
    assert missing in str(error.value)
    assert "finegauge trace" not in str(error.value)


def test_what_a_causal_class_leaves_out_of_encoders_is_said() -> None:
    assert "heads that classify" in beyond_causal_text("rembert")[0]
    assert "decoder alone" in beyond_causal_text("blenderbot")[0]
    assert beyond_causal_text("llama") == ()


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UnsupportedError, match="Did you mean 'mixtral'"):
        architecture({"model_type": "mixtrall"})


@pytest.mark.parametrize("config", [{}, {"hidden_size": 4096}, {"model_type": 7}, {"model_type": None}])
def test_a_config_without_model_type_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="model_type"):
        architecture(config)


def test_a_config_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(FieldError, match="not a mapping"):
        architecture(["llama"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers='0' is not a whole number"),
        ({"num_hidden_layers": -3}, "num_hidden_layers='-3'"),
        (
            {"num_hidden_layers": 1_000_000_000},
            "num_hidden_layers='1000000000' is not a whole number from 1 to 10,000",
        ),
        ({"hidden_size": "4096"}, "hidden_size='4096'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 4096.5}, "hidden_size='4096.5'"),
        ({"hidden_size": True}, "hidden_size='True'"),
        ({"hidden_size": 4097}, "hidden_size=4097 is not divisible by num_attention_heads=32"),
        ({"num_key_value_heads": 5}, "num_attention_heads=32 is not divisible by num_key_value_heads=5"),
        ({"vocab_size": 10**12}, "vocab_size='1000000000000'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes' is not a truth value"),
        ({"hidden_act": 3}, "hidden_act='3' is not a text"),
    ],
)
def test_absurd_figures_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as error:
        architecture({"model_type": "llama", **changed})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mixtral", "num_experts_per_tok": 9},
            "num_experts_per_tok=9 is more than num_local_experts=8",
        ),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"model_type": "gemma2", "layer_types": ["other"] * 26}, "layer_types has 'other'"),
        ({"model_type": "gemma2", "layer_types": "full"}, "layer_types='full' is not a list"),
        ({"model_type": "mamba", "expand": math.nan}, "expand='nan' is not a positive number"),
        ({"model_type": "mamba", "expand": 1e-9}, "expand=1e-09 leaves no channels"),
        ({"model_type": "mamba2", "num_heads": 100}, "is not num_heads=100 x head_dim=64"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "cross-attention"),
        ({"model_type": "helium", "head_dim": 64}, "num_attention_heads=20 of 64 channels"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries"),
        ({"model_type": "internlm3", "qkv_bias": True}, "qkv_bias other than bias"),
        ({"model_type": "gpt_neo", "attention_types": [["global", 24]]}, "attention_types has"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 3]]}, "describes 3 layers"),
        ({"model_type": "exaone_moe", "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ({"model_type": "hunyuan_v1_moe", "moe_topk": [1, 2]}, "moe_topk that differs"),
        (
            {"model_type": "laguna", "num_hidden_layers": 1, "num_attention_heads_per_layer": [12]},
            "num_attention_heads_per_layer has 12",
        ),
        ({"model_type": "nemotron-nas"}, "block_configs must list one block"),
        ({"model_type": "nemotron-nas", "num_hidden_layers": 1, "block_configs": [3]}, "without attention"),
        ({"model_type": "qwen2_vl", "text_config": 3}, "text_config='3' is not a mapping"),
        (
            {"model_type": "llava", "vision_config": {"model_type": "siglip_vision_model"}},
            "siglip_vision_model",
        ),
        ({"model_type": "llama", "per_layer_config": {"3": {}}}, "per_layer_config"),
        ({"model_type": "qwen", "no_bias": False}, "no_bias=false"),
        ({"model_type": "chatglm", "rmsnorm": False}, "RMS norms"),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8}, "num_kv_heads=8"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "a layer of kind 'X'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": ["M"]}, "hybrid_override_pattern"),
        ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FX"}, "index_topk_pattern='FX'"),
        ({"model_type": "dbrx", "attn_config": 3}, "attn_config='3' is not a mapping"),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 3}}, "kv_n_heads=3"),
        ({"model_type": "dbrx", "ffn_config": {"ffn_act_fn": {"name": "relu"}}}, "the activation 'relu'"),
        ({"model_type": "bamba", "mamba_d_head": 3}, "mamba_d_head='3'"),
        ({"model_type": "mimo_v2_flash", "num_key_value_heads": 64}, "128 key heads"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries"),
        ({"model_type": "gemma3n", "text_config": {"num_hidden_layers": 4}}, "another size"),
        ({"model_type": "deberta-v2"}, "share_att_key"),
        (
            {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2]}},
            "merge_kernel_size has 1 entries",
        ),
        ({"model_type": "gpt2", "n_layer": 0}, "n_layer='0'"),
        ({"model_type": "blackmamba", "hidden_size": 64}, "mamba_moe_layers is missing"),
        ({"mamba_moe_layers": ["r"], "num_layers": 2, "hidden_size": 64}, "mamba_moe_layers has 1 entries"),
        (
            {"mamba_moe_layers": ["x"], "num_layers": 1, "hidden_size": 64, "vocab_size": 10},
            "mamba_moe_layers has 'x'",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FineGaugeError) as error:
        architecture(config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_experts_per_token_are_checked_against_the_experts() -> None:
    with pytest.raises(FieldError, match="there are 8 experts"):
        architecture({"model_type": "mixtral"}, num_experts_per_tok=9)
    with pytest.raises(FieldError, match="no routed experts"):
        architecture({"model_type": "llama"}, num_experts_per_tok=2)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "layer_types",
    "sliding_window",
    "tie_word_embeddings",
    "text_config",
    "vision_config",
    "mamba_dt_rank",
    "expand",
    "n_routed_experts",
)


@given(model_type=st.sampled_from(supported_model_types()), key=st.sampled_from(KEYS), value=ODD)
def test_odd_values_end_in_an_architecture_or_in_one_sentence(
    model_type: str, key: str, value: object
) -> None:
    began, message = time.perf_counter(), ""
    try:
        architecture({"model_type": model_type, key: value})
    except FineGaugeError as error:
        message = str(error)
    assert "\n" not in message
    assert time.perf_counter() - began < 2
