"""Memory that a framework's or a model's own code decides: litgpt, GPT-BigCode, norms under autocast."""

from typing import Any

import pytest

from finegauge.model.graph import build, lowering_of
from finegauge.prediction.predictor import predict
from finegauge.profile import Breakdown
from finegauge.run.phases import accumulates_whole
from finegauge.run.run import Run
from finegauge.units import GIB

SANTACODER = {
    "model": "bigcode/gpt_bigcode-santacoder", "gpu": "A100-SXM4-80GB", "attention": "flash", "seq_len": 2048,
    "micro_batch_size": 8, "activation_checkpointing": "full", "transformers_version": "4.48",
}  # fmt: skip
TOKENS, LAYERS, VOCABULARY, FUSED_WIDTH = 8 * 2048, 24, 49280, 2048 + 2 * 128
LITGPT = {
    "framework": "litgpt", "gpu": "A10G", "attention": "sdpa", "seq_len": 512, "lora_dropout": 0.05,
    "adapter_dtype": "bf16", "transformers_version": "4.44", "bitsandbytes_version": "0.42",
}  # fmt: skip
SHARDED: dict[str, Any] = {
    "model": "llama-2-7b", "method": "full", "gpu": "A100-SXM4-80GB", "attention": "flash",
    "seq_len": 512, "num_gpus": 8, "sharding": "fsdp", "gradient_accumulation_steps": 4,
}  # fmt: skip
QV, ALL = ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2", "lm_head")


def santacoder(**fields: Any) -> Run:
    return Run(**{**SANTACODER, "method": "full", **fields})


def litgpt(**fields: Any) -> Run:
    quantised = {"weights_dtype": "nf4"} if fields.get("method") == "qlora" else {}
    return Run(**{**LITGPT, **quantised, **fields})


def phase(run: Run, name: str) -> Breakdown:
    return predict(run).phase_memory_bytes.under(name)


def test_gpt_bigcode_hands_back_keys_and_values_until_layers_are_told_not_to() -> None:
    part = ("activations", "keys and values handed back")
    held = LAYERS * FUSED_WIDTH * 2 * TOKENS
    assert phase(santacoder(), "loss").parts[part] == held
    assert part not in phase(santacoder(), "backward").parts
    assert part not in phase(santacoder(transformers_version="4.53"), "loss").parts
    assert part not in phase(santacoder(activation_checkpointing="none"), "loss").parts


def test_a_loss_in_16_bit_holds_logits_a_shifted_copy_and_log_probabilities() -> None:
    *_, loss = build(santacoder()).head
    assert loss.saved_bytes.token + loss.live_forward_bytes.token == pytest.approx(6 * VOCABULARY, rel=0.01)
    *_, fused = build(santacoder(kernels=("foak",))).head
    assert fused.saved_bytes.token + fused.live_forward_bytes.token == pytest.approx(4 * VOCABULARY, rel=0.02)


@pytest.mark.parametrize(
    ("model", "autocast", "width"),
    [
        ("bigcode/gpt_bigcode-santacoder", "bf16", 4),
        ("bigcode/gpt_bigcode-santacoder", "none", 2),
        ("llama-2-7b", "bf16", 2),
    ],
)
def test_layer_norms_under_autocast_widen_the_stream_of_4_bit_linears(
    model: str, autocast: str, width: int
) -> None:
    run = santacoder(model=model, method="qlora", autocast=autocast)
    assert lowering_of(run).activation_bytes == width
    plain = santacoder(model=model, method="lora", autocast=autocast)
    assert lowering_of(plain).activation_bytes == 2  # an unquantised linear gives back 16 bit


@pytest.mark.parametrize(
    ("fields", "gib"),
    [
        ({"model": "phi-2", "method": "lora", "micro_batch_size": 4, "lora_targets": ALL}, 13.02),
        ({"model": "phi-2", "method": "qlora", "micro_batch_size": 4, "lora_targets": ALL}, 13.29),
        ({"model": "llama-2-7b", "method": "lora", "micro_batch_size": 2, "lora_targets": QV}, 18.41),
        ({"model": "llama-2-7b", "method": "qlora", "micro_batch_size": 2, "lora_targets": QV}, 12.74),
    ],
)
def test_litgpt_holds_what_its_config_hub_prints(fields: dict[str, Any], gib: float) -> None:
    rank = 8 if fields["model"] == "phi-2" else 32
    run = litgpt(**fields, lora_rank=rank, gradient_accumulation_steps=4)
    assert predict(run).peak_memory_bytes.total / GIB == pytest.approx(gib, rel=0.025)


def test_litgpt_keeps_the_inputs_that_old_4_bit_linears_pin_into_the_next_forward_pass() -> None:
    part = ("activations", "last micro-batch")
    fields: dict[str, Any] = {"model": "llama-2-7b", "method": "qlora", "lora_targets": QV}
    pinned = 32 * 2 * (3 * 4096 + 11008) * 512
    assert phase(litgpt(**fields), "forward").parts[part] == pinned
    assert part not in phase(litgpt(**fields, bitsandbytes_version="0.43.2"), "forward").parts
    assert part not in phase(litgpt(**fields, framework=""), "forward").parts


def test_litgpt_quantises_the_head_and_never_ties_it() -> None:
    gemma = {"model": "google/gemma-2b", "lora_targets": QV}
    table = 256_000 * 2048
    theirs = build(litgpt(**gemma, method="lora")).weights.base_bytes
    assert theirs - build(litgpt(**gemma, method="lora", framework="")).weights.base_bytes == 2 * table
    quantised = build(litgpt(**gemma, method="qlora")).weights.base_bytes
    plain = build(litgpt(**gemma, method="qlora", framework="")).weights.base_bytes
    assert quantised - plain == pytest.approx(table * 4.5 / 8, rel=0.001)


def test_gradients_stay_whole_where_no_sync_accumulates() -> None:
    fields: dict[str, Any] = {**SHARDED}
    part = ("workspace", "gradients being reduced")
    whole = 2 * 6_738_415_616
    assert phase(Run(**fields), "forward").parts[part] == pytest.approx(whole * 7 / 8, rel=1e-6)
    fields["gradient_accumulation_steps"] = 1
    assert part not in phase(Run(**fields), "forward").parts


def test_gradients_are_reduced_once_a_step_under_no_sync_and_each_time_elsewhere() -> None:
    ours, theirs = Run(**SHARDED), Run(**SHARDED, framework="torchtune")
    assert accumulates_whole(ours)
    assert not accumulates_whole(theirs)

    def reduced(run: Run) -> float:
        parts = predict(run).step_time_s.parts
        return sum(seconds for path, seconds in parts.items() if path[-1] == "reduce-scatter")

    assert reduced(theirs) == pytest.approx(4 * reduced(ours))


def test_torchtune_keeps_every_chunk_of_logits_and_adds_up_the_head_gradient() -> None:
    vocabulary, tokens, hidden = 128256, 8192, 3072
    fields: dict[str, Any] = {
        "model": "llama-3.2-3b", "gpu": "A100-SXM4-80GB", "attention": "sdpa", "seq_len": 4096,
        "micro_batch_size": 2, "activation_checkpointing": "offload", "loss": "chunked", "compile": True,
        "framework": "torchtune", "checkpointing_reentrant": False,
    }  # fmt: skip
    part = ("logits", "loss")
    logits = 2 * vocabulary * tokens
    lora = Run(**fields, method="lora", lora_rank=64, adapter_dtype="bf16")
    assert phase(lora, "loss").parts[part] == pytest.approx(logits, rel=0.03)
    assert phase(lora, "backward").parts[part] == pytest.approx(logits, rel=0.06)
    full = Run(**fields, method="full", optimizer_implementation="in_backward")
    head = 2 * vocabulary * hidden
    assert phase(full, "backward").parts[part] == pytest.approx(logits + 2 * head, rel=0.03)
    assert phase(lora.replace(framework=""), "loss").parts[part] < logits / 4


def test_an_update_in_backward_caps_gradients_before_the_worst_moment_is_chosen() -> None:
    fields: dict[str, Any] = {
        "model": "llama-3.2-3b", "gpu": "A100-SXM4-80GB", "method": "full", "attention": "flash",
        "seq_len": 4096, "micro_batch_size": 2, "activation_checkpointing": "full",
        "optimizer_implementation": "in_backward",
    }  # fmt: skip
    parts = phase(Run(**fields), "backward")
    assert parts["logits"] > 8 * 128256 * 8192  # the loss's own backward, not a layer's with all gradients


def test_wide_streams_are_narrowed_and_widened_around_every_4_bit_linear() -> None:
    def casts(**fields: Any) -> list[float]:
        run = santacoder(method="qlora", autocast="bf16", **fields)
        return [op.forward.bytes.token for op in build(run).layers[0].ops if op.path[-1] == "cast"]

    wide = (4 + 2) * 2048.0
    assert casts() == [wide + 6.0 * FUSED_WIDTH, 2 * wide, 5 * wide, 5 * wide]
    assert casts(model="llama-2-7b") == []


@pytest.mark.parametrize("version", ["4.49.0", "5.0.0"])
def test_a_loop_that_takes_its_loss_of_the_logits_holds_three_times_their_bytes(version: str) -> None:
    fields: dict[str, Any] = {
        **{"model": "llama-3-8b", "method": "lora", "gpu": "A100-SXM4-80GB", "seq_len": 8192},
        **{"activation_checkpointing": "full", "transformers_version": version},
    }
    own = predict(Run(**fields, framework="universal-llm-trainer (HF Transformers)"))
    logits = 8192 * 128_256
    loss = own.phase_memory_bytes.under("loss").parts["logits", "loss"]
    assert loss == pytest.approx(6 * logits, rel=0.02)  # logits, shifted copy, log-probabilities
    assert own.memory_bytes("torch_allocated") < predict(Run(**fields)).memory_bytes("torch_allocated")


def test_flash_attention_2_repeated_keys_in_some_models_before_4_48() -> None:
    def kept(model: str, version: str) -> float:
        run = Run(
            model=model, method="full", gpu="A100-SXM4-80GB", attention="flash", transformers_version=version
        )
        ops = build(run).layers[0].ops
        return next(op.saved_bytes.token for op in ops if op.path[-1] == "attention kernel")

    # keys and values of 8 heads become those of 32: six times their own bytes more
    assert kept("mistral-7b", "4.45.2") - kept("mistral-7b", "4.48.0") == 2 * 2 * (4096 - 1024)
    assert kept("llama-3-8b", "4.45.2") == kept("llama-3-8b", "4.48.0")
