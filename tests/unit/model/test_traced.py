"""A traced layer, from its document to operators: who keeps what, which documents count."""

import json
from typing import Any

import pytest

from finegauge.documents import installed_version
from finegauge.errors import UnsupportedError
from finegauge.model import traced
from finegauge.model.families import architecture
from finegauge.model.graph import lowering_of
from finegauge.model.layers import layer_ops
from finegauge.model.op import Extents
from finegauge.model.op_builder import OpBuilder
from finegauge.model.traced import MODES, Traced, mode_of
from finegauge.run.run import Run

CONFIG = {"model_type": "not_described", "hidden_size": 8}
NOTHING = {"flops": [0.0] * 4, "bytes": [0.0] * 4, "launches": 0}
EXTENTS = Extents.of(2, 16)


def rest(**changes: Any) -> dict[str, Any]:
    """Return one part of a layer: 3 bytes per token kept always, 5 for q_proj, 7 for its norm's weight."""
    kept = [
        [[], [0.0, 0.0, 3.0, 0.0]],
        [["self_attn.q_proj"], [0.0, 0.0, 5.0, 0.0]],
        [["others"], [0.0, 0.0, 7.0, 0.0]],
    ]
    costs = {"forward": NOTHING, "backward": NOTHING, "backward_trained": NOTHING}
    live = {"live_forward": [0.0] * 4, "live_backward": [0.0] * 4, "passing": [0.0] * 4}
    return {"part": "attention", "kept": kept, "kernels": [[8.0, 8.0, None]], **costs, **live, **changes}


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of a model of three layers with one projection and one expert matrix each."""
    layer = {
        "kind": "attention",
        "count": 3,
        "tensors": [["self_attn.q_proj.weight", [8, 8], "linear"], ["experts.up", [4, 8, 2], "experts"]],
        "uses": [
            ["attention", ["self_attn.q_proj", 8, 8, False, "linear"], 1.0, 1, 1.0],
            ["attention", ["experts.up", 8, 2, False, "experts"], 2.0, 4, 1.0],
        ],
        "rests": {mode: [rest()] for mode in MODES if mode != "fp32/eager"},
    }
    whole = {
        "schema": traced.SCHEMA,
        "config_sha256": traced.key_of(CONFIG),
        "transformers": installed_version("transformers"),
        "model_type": "not_described",
        "hidden_size": 8,
        "vocab_size": 10,
        "max_position_embeddings": 64,
        "embeddings": [["embed_tokens.weight", [10, 8], "embedding"]],
        "other": [],
        "head": None,
        "final_norm": ["norm", 8, "rms", True, False],
        "layers": [layer],
        "notes": [],
    }
    return whole | changes


def saved_bytes(**method: Any) -> float:
    """Return what one traced layer keeps for 32 tokens."""
    return float(sum(op.saved_bytes.at(EXTENTS) for op in _ops(**method)))


def _ops(**method: Any) -> list[Any]:
    fields = {"model": "mistralai/Mixtral-8x7B-v0.1", "attention": "sdpa", "weights_dtype": "bf16", **method}
    builder = OpBuilder(lowering_of(Run(**fields)))
    layer, _ = traced.traced_architecture(document()).layers[0]
    layer_ops(builder, layer, 8)
    return builder.ops


def test_parameters_are_those_of_the_document() -> None:
    built = traced.traced_architecture(document())
    assert built.num_parameters == 3 * (64 + 64) + 80 + 8
    assert built.num_active_parameters == built.num_parameters - 3 * 2 * 8 * 2  # 2 of 4 experts idle


def test_full_fine_tuning_keeps_for_every_weight() -> None:
    assert saved_bytes(method="full") == pytest.approx(32 * (3 + 5 + 7))


def test_an_adapter_keeps_its_projections_input_and_no_norms() -> None:
    kept = saved_bytes(
        method="lora",
        lora_rank=4,
        lora_targets=("q_proj",),
        adapter_dtype="bf16",
        activation_checkpointing="full",
    )
    assert kept == pytest.approx(32 * (3 + 5 + 4 * 2))  # and A's output, rank 4 in 16 bit


def test_attention_counts_half_of_the_pairs() -> None:
    kernel = next(op for op in _ops(method="full") if op.kind == "attention")
    assert kernel.forward.flops.at(EXTENTS) == 2 * 16**2 * 2 * (8 + 8) / 2


def test_a_mode_that_was_not_traced_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="could not be traced as fp32/eager"):
        _ops(method="full", weights_dtype="fp32", autocast="none", attention="eager")


def test_flash_attention_in_fp32_is_what_sdpa_does() -> None:
    low = lowering_of(
        Run(model="mistralai/Mixtral-8x7B-v0.1", method="full", weights_dtype="fp32", attention="flash")
    )
    assert mode_of(low).endswith("sdpa") or mode_of(low).startswith("autocast")


def test_every_tensor_and_layer_is_a_traced_one() -> None:
    mixer = traced.traced_architecture(document()).layers[0][0].branches[0].mixer
    assert isinstance(mixer, Traced)
    assert [tensor.size for tensor in mixer.tensors()] == [64, 64]


class TestCache:
    """What lies in the user's cache, and what of it counts."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))

    def test_what_was_written_answers(self) -> None:
        traced.write_trace(document(), CONFIG)
        assert architecture(CONFIG).num_layers == 3

    def test_keys_that_change_nothing_find_the_same_trace(self) -> None:
        traced.write_trace(document(), CONFIG)
        renamed = {**CONFIG, "_name_or_path": "x", "transformers_version": "4.1", "architectures": ["A"]}
        assert architecture(renamed).num_layers == 3

    def test_another_figure_is_another_model(self) -> None:
        traced.write_trace(document(), CONFIG)
        with pytest.raises(UnsupportedError, match="finegauge trace"):
            architecture({**CONFIG, "hidden_size": 16})

    @pytest.mark.extras
    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ('{"schema": 1, "lay', "is damaged"),
            (json.dumps(document(schema=0)), "has schema '0'"),
            (json.dumps(document(transformers="4.0.0")), "was made with transformers 4.0.0"),
            (json.dumps(document(config_sha256="0")), "another configuration"),
            (json.dumps(document(layers=[])), "is damaged"),
            (json.dumps(document(layers=[{"kind": 1}])), "is damaged"),
            ("[]", "is damaged"),
        ],
    )
    def test_a_document_that_does_not_hold_is_ignored_with_a_sentence(
        self, content: str, sentence: str
    ) -> None:
        path = traced.write_trace(document(), CONFIG)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        with pytest.raises(UnsupportedError, match=f"{sentence}.*finegauge trace"):
            architecture(CONFIG)

    def test_experts_per_token_stay_the_configs(self) -> None:
        traced.write_trace(document(), CONFIG)
        with pytest.raises(UnsupportedError, match="num_experts_per_tok=1: a traced model_type"):
            architecture(CONFIG, num_experts_per_tok=1)

    def test_a_folder_that_cannot_be_written_is_said(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(blocked))
        with pytest.raises(Exception, match="Set FINEGAUGE_CACHE_DIR"):
            traced.write_trace(document(), CONFIG)
