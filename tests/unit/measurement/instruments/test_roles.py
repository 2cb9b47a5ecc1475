"""Roles by structure: the same words for every family."""

import pytest
import transformers

from finegauge.measurement.instruments.module_roles import Roles, layers_of, roles_of, watched
from tests.unit.measurement.instruments.tiny import configs


def model(family: str) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_config(configs()[family])


@pytest.mark.parametrize(
    ("family", "path", "role"),
    [
        ("llama", "model.layers.1.self_attn.q_proj", ("attention", "q_proj")),
        ("llama", "model.layers.1.input_layernorm", ("attention", "norm")),
        ("llama", "model.layers.1.post_attention_layernorm", ("mlp", "norm")),
        ("llama", "model.layers.1.mlp.act_fn", ("mlp", "activation")),
        ("llama", "model.norm", ("head", "norm")),
        ("llama", "lm_head", ("head", "lm_head")),
        ("llama", "model.embed_tokens", ("embedding", "look up")),
        ("llama", "base_model.model.model.layers.0.self_attn.q_proj.base_layer", ("attention", "q_proj")),
        ("mixtral", "model.layers.0.post_attention_layernorm", ("moe", "norm")),
        ("mixtral", "model.layers.0.mlp.experts", ("moe", "gather tokens")),
        ("qwen3_moe", "model.layers.0.self_attn.q_norm", ("attention", "norm")),
        ("jamba", "model.layers.0.mamba.conv1d", ("mamba", "convolution")),
        ("jamba", "model.layers.0.input_layernorm", ("mamba", "norm")),
        ("jamba", "model.layers.1.input_layernorm", ("attention", "norm")),
        ("jamba", "model.layers.1.pre_ff_layernorm", ("moe", "norm")),
        ("jamba", "model.layers.0.pre_ff_layernorm", ("mlp", "norm")),
        ("mamba", "backbone.layers.0.mixer", ("mamba", "scan")),
        ("mamba", "backbone.norm_f", ("head", "norm")),
        ("opt", "model.decoder.layers.0.fc1", ("mlp", "fc1")),
        ("opt", "model.decoder.layers.0.final_layer_norm", ("mlp", "norm")),
        ("gemma2", "model.layers.0.post_attention_layernorm", ("attention", "norm")),
        ("gemma2", "model.layers.0.post_feedforward_layernorm", ("mlp", "norm")),
    ],
)
def test_a_path_has_a_role(family: str, path: str, role: tuple[str, str]) -> None:
    assert roles_of(model(family))(path) == role


def test_layers_are_the_outermost_list() -> None:
    assert len(layers_of(model("jamba"))) == 2
    assert len(layers_of(model("opt"))) == 2


def test_norms_belong_to_the_mixer_they_serve_by_the_order_of_calls() -> None:
    roles = Roles(model("olmo2"))  # attention, its norm, feed-forward, its norm
    layer = "model.layers.0"
    order = ["self_attn", "post_attention_layernorm", "mlp", "post_feedforward_layernorm"]
    calls = {layer: order}
    assert roles.of((f"{layer}.post_attention_layernorm", ""), calls) == ("attention", "norm")
    assert roles.of((f"{layer}.post_feedforward_layernorm", ""), calls) == ("mlp", "norm")
    assert roles.of((layer, "self_attn"), calls) == ("attention", "residual")
    assert roles.of((layer, "mlp"), calls) == ("mlp", "residual")


def test_linears_that_are_no_module_of_their_own_are_a_feed_forward() -> None:
    roles = Roles(model("opt"))
    layer = "model.decoder.layers.0"
    calls = {layer: ["self_attn_layer_norm", "self_attn", "final_layer_norm", "fc1", "fc2"]}
    assert roles.of((layer, "fc1"), calls) == ("mlp", "activation")
    assert roles.of((layer, "fc2"), calls) == ("mlp", "residual")
    assert roles.of((layer, "self_attn"), calls) == ("attention", "residual")


def test_work_outside_all_modules() -> None:
    roles = Roles(model("llama"))
    assert roles.of(("", ""), {}) == ("embedding", "positions")
    assert roles.of(("", "model.layers.1"), {}) == ("embedding", "positions")
    assert roles.of(("", "lm_head"), {}) == ("loss", "cross entropy")
    assert roles.of(("", "model.norm"), {}) == ("loss", "cross entropy")


def test_every_family_is_covered_by_known_parts() -> None:
    parts = {"attention", "mamba", "moe", "mlp", "head", "embedding"}
    for family in configs():
        built = model(family)
        role = roles_of(built)
        assert {role(item.path)[0] for item in watched(built)} <= parts
