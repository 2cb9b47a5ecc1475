"""Memory of known cases by hand arithmetic, and of the phases of a step."""

from typing import Any

import pytest

from finegauge.errors import FieldError, UnsupportedError
from finegauge.prediction.explanation import formulas
from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import probability_out_of_memory
from finegauge.run.run import Run
from finegauge.units import GIB

LLAMA_7B = 6_738_415_616


def run(**fields: Any) -> Run:
    return Run(
        **{"model": "llama-2-7b", "method": "full", "gpu": "A100-SXM4-80GB", "attention": "flash", **fields}
    )


def test_pure_bf16_adamw_holds_four_copies_and_a_fifth_in_a_foreach_update() -> None:
    profile = predict(run(activation_checkpointing="full", optimizer_implementation="foreach"))
    assert profile.peak_phase == "optimizer"
    states = profile.peak_memory_bytes
    assert states["weights"] == states["gradients"] == 2 * LLAMA_7B
    assert states["optimizer"] == 4 * LLAMA_7B
    assert states.parts["workspace", "optimizer"] == 2 * LLAMA_7B
    fused = predict(run(activation_checkpointing="full", optimizer_implementation="fused"))
    assert fused.peak_memory_bytes.total < states.total


def test_fp32_weights_under_autocast_take_sixteen_bytes_at_rest() -> None:
    profile = predict(run(weights_dtype="fp32", autocast="bf16", activation_checkpointing="full"))
    at_rest = profile.phase_memory_bytes.under("optimizer")
    assert at_rest["weights"] + at_rest["gradients"] + at_rest["optimizer"] == 16 * LLAMA_7B


@pytest.mark.parametrize(("optimizer", "each"), [("adamw", 4.0), ("lion", 4.0), ("sgd", 0.0)])
def test_optimizer_states_by_name(optimizer: str, each: float) -> None:
    states = predict(run(optimizer=optimizer)).peak_memory_bytes["optimizer"]
    assert states == each * LLAMA_7B  # two 16-bit values; one of fp32, as bitsandbytes keeps it; none


def test_eight_bit_states_take_a_byte_and_a_scale() -> None:
    states = predict(run(optimizer="adamw_8bit")).peak_memory_bytes["optimizer"]
    assert states == pytest.approx(2 * LLAMA_7B * (1 + 4 / 256))


def test_only_paged_states_of_small_tensors_stay_on_the_gpu() -> None:
    norms = 65 * 4096
    assert predict(run(optimizer="paged_adamw")).peak_memory_bytes["optimizer"] == 2 * 4 * norms


def test_lora_trains_r_times_in_plus_out() -> None:
    profile = predict(
        run(method="lora", lora_rank=16, lora_targets=("q_proj", "v_proj"), adapter_dtype="fp32")
    )
    params = 32 * 2 * 16 * (4096 + 4096)
    assert profile.peak_memory_bytes.parts["weights", "adapters"] == 4 * params
    assert profile.peak_memory_bytes["optimizer"] == 8 * params


def test_nf4_weighs_half_a_byte_and_its_constants() -> None:
    linears = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    others = LLAMA_7B - linears
    single = predict(run(method="qlora", weights_dtype="nf4")).peak_memory_bytes.parts["weights", "model"]
    double = predict(run(method="qlora", weights_dtype="nf4_dq")).peak_memory_bytes.parts["weights", "model"]
    codes = 32 * 7 * 16 * 4  # a table of sixteen values for every matrix
    nested = 32 * 7 * (256 * 4 + 4)  # and one of 256, with an offset, for its scales
    assert single == linears * 4.5 / 8 + 2 * others + codes
    scales = linears * (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert double == scales + 2 * others + codes + nested


def test_fused_experts_stay_in_sixteen_bit() -> None:
    fused = predict(run(model="mixtral-8x7b", method="qlora", transformers_version="5.23"))
    apart = predict(run(model="mixtral-8x7b", method="qlora", transformers_version="4.40"))
    assert fused.peak_memory_bytes["weights"] > 3 * apart.peak_memory_bytes["weights"]


def test_checkpointing_keeps_one_input_per_layer() -> None:
    profile = predict(run(activation_checkpointing="full", micro_batch_size=2, seq_len=4096, optimizer="sgd"))
    loss = profile.phase_memory_bytes.under("loss")
    assert loss.parts["activations", "checkpoints"] == 32 * 8192 * 4096 * 2


def test_logits_grow_with_the_vocabulary_and_a_fused_loss_saves_them() -> None:
    full = predict(run(micro_batch_size=4, seq_len=4096)).phase_memory_bytes.under("loss")["logits"]
    fused = predict(run(micro_batch_size=4, seq_len=4096, loss="fused")).phase_memory_bytes.under("loss")[
        "logits"
    ]
    assert full >= 10 * 4 * 4096 * 32000
    assert fused < full / 3


def test_old_four_bit_linears_pin_their_inputs_only_without_reentrant_checkpointing() -> None:
    def activations(version: str, *, reentrant: bool) -> float:
        asked = run(
            method="qlora", activation_checkpointing="full", seq_len=4096, micro_batch_size=2,
            bitsandbytes_version=version, checkpointing_reentrant=reentrant,
        )  # fmt: skip
        return predict(asked).phase_memory_bytes.under("loss")["activations"]

    tokens = 8192
    pinned = activations("0.42", reentrant=False) - activations("0.42", reentrant=True)
    assert pinned == pytest.approx(32 * tokens * 2 * (3 * 4096 + 11008), rel=0.01)  # qkv, o, gate+up, down
    assert activations("0.50", reentrant=False) == activations("0.42", reentrant=True)


def test_device_memory_adds_slack_and_context() -> None:
    profile = predict(run())
    assert profile.device_memory_bytes.total > profile.peak_memory_bytes.total
    assert profile.device_memory_bytes["context"] == pytest.approx(0.55 * GIB)


def test_probability_follows_the_distance_to_the_capacity() -> None:
    roomy = predict(run(method="lora", activation_checkpointing="full", seq_len=512))
    hopeless = predict(run(weights_dtype="fp32", seq_len=8192, micro_batch_size=8))
    assert probability_out_of_memory(roomy) < 0.001
    assert probability_out_of_memory(hopeless) > 0.999
    assert (roomy.outcome, hopeless.outcome) == ("completed", "out_of_memory")
    assert hopeless.step_time_s.total > 0


def test_every_memory_part_has_its_formula() -> None:
    for asked in (
        run(),
        run(method="qlora", activation_checkpointing="full"),
        run(model="mixtral-8x7b", method="lora"),
    ):
        lines = formulas(asked)
        for path in predict(asked).device_memory_bytes.parts:
            assert path in lines, path


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"phase": "dpo", "num_gpus": 2, "pipeline_parallel": 2}, "phase=dpo with pipeline_parallel=2"),
        ({"method": "freeze", "num_gpus": 2}, "method=freeze is predicted on one GPU"),
        ({"method": "freeze", "model": "jamba-v0.1"}, "method=freeze is not predicted for jamba"),
    ],
)
def test_what_no_equation_covers_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        predict(run(**fields))


def test_a_run_without_a_gpu_is_refused() -> None:
    with pytest.raises(FieldError, match="names no GPU"):
        predict(run(gpu=None))


def test_adapter_targets_that_the_model_lacks_are_refused_with_those_it_has() -> None:
    with pytest.raises(FieldError, match=r"names no projection of llama-2-7b.*down_proj.*q_proj"):
        predict(run(method="lora", lora_targets=("w9",)))


def test_experts_apart_answer_to_mixtral_s_names_and_to_llama_s() -> None:
    sizes = {
        predict(
            run(
                model="mixtral-8x7b",
                method="lora",
                lora_rank=8,
                lora_targets=names,
                transformers_version="4.40",
            )
        ).peak_memory_bytes.parts["weights", "adapters"]
        for names in (("w1", "w2", "w3"), ("gate_proj", "up_proj", "down_proj"))
    }
    assert len(sizes) == 1
    assert sizes.pop() > 0
