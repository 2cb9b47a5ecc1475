"""Rates of cards that power, or accumulation at half rate, holds back; formats that a GPU does not have."""

import pytest

from finegauge.catalogue.gpus import gpu, has_no_flash, multiplies_bf16
from finegauge.errors import UnsupportedError
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.device import Device
from finegauge.prediction.predictor import predict
from finegauge.prediction.timed_operators import seconds_of, source_for
from finegauge.run.run import Run


def share_of_peak(name: str, power_limit_w: float | None = None) -> float:
    spec = gpu(name)
    half = "bf16" if multiplies_bf16(name) else "fp16"
    rate = Device.of(spec, DATASHEET, {half}, power_limit_w).matmul_flops_per_s[half]
    return rate / spec.flops_per_s[half]


def test_boards_of_few_watts_run_at_lower_clocks() -> None:
    """70 W for 65 TFLOP/s on the process on which 300 W made 125."""
    assert share_of_peak("T4") == pytest.approx(0.40, abs=0.01)
    assert share_of_peak("V100") == pytest.approx(0.70, abs=0.01)
    assert share_of_peak("L4") < 0.8 * share_of_peak("L40S")
    assert share_of_peak("A10") < 0.8 * share_of_peak("A40")


def test_halved_accumulation_never_comes_to_the_limit() -> None:
    for name in ("RTX 4090", "RTX 3090", "RTX 5090", "A10G"):
        assert gpu(name).halves_accumulation
        assert share_of_peak(name) == 1.0


def test_fp4_of_halved_parts_is_as_far_from_its_peak_as_that_of_whole_ones() -> None:
    """No FP4 product is halved: a 5090 comes to its power as an RTX PRO 6000 of the same chip does."""
    shares = []
    for name in ("RTX 5090", "RTX PRO 6000 Blackwell WS"):
        spec = gpu(name)
        rates = Device.of(spec, DATASHEET, {"bf16"}).matmul_flops_per_s
        shares.append(rates["nvfp4"] / spec.flops_per_s["fp4"])
    assert shares[0] == pytest.approx(shares[1], rel=0.01)
    large = {"m": 8192.0, "n": 8192.0, "k": 8192.0}
    product = [
        seconds_of(source_for(gpu(name), "gemm", "nvfp4"), large) for name in ("RTX 5090", "RTX PRO 6000 WS")
    ]
    assert product[0] / product[1] == pytest.approx(2015 / 1676, rel=0.12)


def test_a_lowered_limit_lowers_the_clock() -> None:
    assert share_of_peak("H100", 700) == share_of_peak("H100")
    assert share_of_peak("H100", 350) / share_of_peak("H100") == pytest.approx(0.5**0.7)
    assert share_of_peak("H100", 10_000) == share_of_peak("H100")
    whole, lowered = (
        predict(Run(model="llama-3-8b", method="lora", gpu="H100", power_limit_w=watts))
        for watts in (None, 400)
    )
    assert lowered.step_time_s.total > whole.step_time_s.total
    assert lowered.step_energy_j.total < whole.step_energy_j.total


def test_slow_products_wait_less_for_exponentials() -> None:
    def over_products(name: str) -> float:
        device = Device.of(gpu(name), DATASHEET, {"bf16"})
        return device.attention_flops_per_s["bf16"] / device.matmul_flops_per_s["bf16"]

    sustained = DATASHEET.sustained_fraction
    a100, a40, rtx = (
        over_products("A100-80GB") * sustained,
        over_products("A40") * sustained,
        over_products("RTX 4090"),
    )
    assert a100 < a40 < rtx < 1.0


def test_gpus_without_bf16_compute_in_fp16() -> None:
    for name in ("T4", "V100", "RTX 2080 Ti"):
        assert not multiplies_bf16(name)
        assert has_no_flash(name)
        run = Run(model="llama-3.2-1b", method="lora", gpu=name)
        assert (run.weights_dtype, run.adapter_dtype) == ("fp16", "fp16")
        assert run.origins["weights_dtype"] == "FineGauge default"
        assert predict(run).step_time_s.total > 0
        quantised = Run(model="llama-3.2-1b", method="qlora", gpu=name)
        assert predict(quantised).step_time_s.total > 0
    assert multiplies_bf16("A100")
    assert not has_no_flash("A100")


@pytest.mark.parametrize(
    ("fields", "override"),
    [
        ({"weights_dtype": "bf16"}, "use weights_dtype=fp16, which is its default"),
        ({"weights_dtype": "fp32", "autocast": "bf16"}, "use autocast=fp16"),
        ({"weights_dtype": "bf16", "adapter_dtype": "bf16"}, "use weights_dtype=fp16 adapter_dtype=fp16"),
    ],
)
def test_a_format_it_lacks_is_refused_with_the_override(fields: dict[str, str], override: str) -> None:
    run = Run.from_fields({"model": "llama-3.2-1b", "method": "lora", "gpu": "T4", **fields})
    with pytest.raises(UnsupportedError, match="T4 has no bf16") as error:
        predict(run)
    assert override in str(error.value)


def test_unified_memory_without_rates_has_capacity_and_no_time() -> None:
    with pytest.raises(UnsupportedError, match=r"No time is predicted on Apple M4 Max 128GB.*of 96.0 GiB"):
        predict(Run(model="llama-3-8b", method="lora", gpu="M4 Max"))
