"""Seconds of operators from timings: near what was timed, the same for one and for many, honest elsewhere."""

from statistics import median

import numpy
import pytest

from finegauge.catalogue.device_profile import KINDS, timed_kernels, timings
from finegauge.catalogue.gpus import gpu, gpus
from finegauge.errors import UnsupportedError
from finegauge.prediction.timed_operators import evidence, seconds_of, sizes_of, source_for

PRODUCT = {"m": 4096.0, "n": 4096.0, "k": 4096.0}
BARS = {  # of shapes held out, by kind and format
    ("gemm", "bf16"): 0.08, ("gemm", "fp8"): 0.12, ("gemm", "fp8_block"): 0.12, ("gemm", "nvfp4"): 0.12,
    ("attention", "bf16"): 0.12, ("attention", "fp8"): 0.12, ("experts", "bf16"): 0.15,
    ("experts", "fp8"): 0.15, ("experts", "fp8_block"): 0.15, ("experts", "nvfp4"): 0.15,
}  # fmt: skip
LEFT_OUT_BARS = {"bf16": 0.15, "fp8": 0.20, "nvfp4": 0.20}  # of a GPU that was left out


@pytest.mark.parametrize("kind", KINDS)
def test_timed_shapes_are_answered_near_what_was_timed(kind: str) -> None:
    for one in [one for one in timed_kernels() if one.kind == kind][::5]:
        table = timings(one.gpu, kind)[one.column]
        source = source_for(gpu(one.gpu), kind, one.dtype, one.kernel)
        assert source.evidence == "timed"
        assert source.timed == one
        errors = [
            abs(seconds_of(source, sizes) / seconds - 1)
            for sizes, seconds in zip(sizes_of(kind, table.shapes[::9]), table.seconds[::9], strict=True)
        ]
        assert median(errors) < 0.06


def test_one_shape_and_many_are_answered_alike() -> None:
    for kind in KINDS:
        one = next(one for one in timed_kernels() if one.kind == kind)
        shapes = sizes_of(kind, timings(one.gpu, kind)[one.column].shapes[:40])
        source = source_for(gpu(one.gpu), kind, one.dtype, one.kernel)
        many = seconds_of(source, {name: numpy.array([s[name] for s in shapes]) for name in shapes[0]})
        assert many == pytest.approx([seconds_of(source, sizes) for sizes in shapes], rel=1e-9)


def test_shapes_held_out_of_the_fit_are_within_the_bars() -> None:
    rows = evidence()["errors"]
    for (kind, dtype), bar in BARS.items():
        found = [row["held_out_median"] for row in rows if (row["kind"], row["dtype"]) == (kind, dtype)]
        assert found
        assert max(found) <= bar


@pytest.mark.parametrize(("kind", "number"), [("gemm", 14), ("attention", 11)])
def test_products_and_attention_of_every_gpu_left_out_are_within_the_bars(kind: str, number: int) -> None:
    rows = [one for one in evidence()["errors"] if one["kind"] == kind and one["dtype"] in LEFT_OUT_BARS]
    assert len(rows) == number
    assert [one for one in rows if one["left_out_median"] > LEFT_OUT_BARS[one["dtype"]]] == []


def test_a_gpu_that_nobody_timed_says_so_and_is_less_sure() -> None:
    timed = source_for(gpu("h100"), "gemm", "bf16")
    kin = source_for(gpu("h200"), "gemm", "bf16")
    stranger = source_for(gpu("mi300x"), "gemm", "bf16")
    assert [one.evidence for one in (timed, kin, stranger)] == ["timed", "architecture", "other"]
    assert kin.timed.gpu == "H100-SXM5-80GB"
    assert "H200-SXM-141GB was not timed" in kin.note
    widths = [one.interval.high_ratio / one.interval.low_ratio for one in (timed, kin, stranger)]
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [
        ("b300", "B200-SXM-180GB"), ("gb300", "GB200-186GB"), ("rtx5090", "RTX PRO 6000 Blackwell Server"),
        ("rtx4090", "L40S"), ("a100-80gb", "A100-SXM4-80GB"), ("l4", "L40S"),
    ],
)  # fmt: skip
def test_the_nearest_timed_gpu_stands_in(name: str, stand_in: str) -> None:
    assert source_for(gpu(name), "gemm", "bf16").timed.gpu == stand_in


def test_more_bandwidth_shortens_what_it_bounds() -> None:
    moved = {"m": 128.0, "n": 16384.0, "k": 16384.0}
    faster = seconds_of(source_for(gpu("h200"), "gemm", "bf16"), moved)
    assert faster < 0.85 * seconds_of(source_for(gpu("h100"), "gemm", "bf16"), moved)


def test_training_calls_the_linear_of_torch_unless_a_kernel_is_named() -> None:
    h100 = gpu("h100")
    assert source_for(h100, "gemm", "bf16").timed.kernel == "torch.nn.functional.linear"
    assert source_for(h100, "gemm", "bf16", "torch_flow").timed.kernel == "torch_flow"
    elsewhere = source_for(gpu("a100-80gb"), "gemm", "bf16", "torch.nn.functional.linear")
    assert elsewhere.timed.kernel == "vllm_default"


def test_derived_formats_are_less_sure() -> None:
    block = source_for(gpu("b200"), "gemm", "fp8_block")
    scaled = source_for(gpu("b200"), "gemm", "mxfp8")
    assert "mxfp8 was not timed" in scaled.note
    assert scaled.interval.high_ratio > block.interval.high_ratio


def test_what_a_gpu_cannot_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no fp8 matrix rate"):
        source_for(gpu("a100-80gb"), "gemm", "fp8")
    with pytest.raises(UnsupportedError, match="No gemm was timed in 'int3'"):
        source_for(gpu("h100"), "gemm", "int3")
    with pytest.raises(UnsupportedError, match="no bf16 matrix rate"):
        source_for(gpu("t4"), "gemm", "bf16")
    assert seconds_of(source_for(gpu("t4"), "gemm", "fp16"), PRODUCT) > 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp8_block", "nvfp4"])
def test_one_row_more_of_few_is_no_cliff(dtype: str) -> None:
    """Fewer than were timed: 65 took up to 1.66 times as long as 64. A wave of tiles more is left."""
    rows = numpy.array([1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97], dtype=float)
    for spec in gpus().values():
        try:
            source = source_for(spec, "gemm", dtype)
        except UnsupportedError:
            continue
        for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (2048, 2048)):
            seconds = seconds_of(source, {"m": rows, "n": numpy.full(12, n), "k": numpy.full(12, k)})
            assert max(seconds[1::2] / seconds[::2]) < 1.25, (spec.name, n, k)


def test_16_bit_products_take_as_long_in_either_format() -> None:
    """GPUs without bf16 were given a rate of a few FLOP/s in fp16."""
    for spec in gpus().values():
        if "fp16" in spec.flops_per_s and spec.architecture in ("Volta", "Turing", "Pascal"):
            seconds = seconds_of(source_for(spec, "gemm", "fp16"), PRODUCT)
            least_s = 2.0 * 4096**3 / spec.flops_per_s["fp16"]
            assert least_s < seconds < 4.0 * least_s, spec.name


def test_products_reach_of_the_peak_what_the_best_ones_do() -> None:
    """H100 of 500 W has a best product of 0.64 of the peak, that of 700 W 0.80: both were answered alike."""
    named = ("H100-SXM-96GB-HBM2e", "H100-SXM5-80GB", "H200-SXM-141GB")
    weak, strong, twin = (seconds_of(source_for(gpu(name), "gemm", "bf16"), PRODUCT) for name in named)
    assert 1.15 * strong < weak < 1.35 * strong
    assert twin == pytest.approx(strong, rel=0.03)


def test_collectives_take_the_links_that_join_so_many() -> None:
    """Bridged pairs and cards alone were answered as boards with a switch: 8 A100 over PCIe in 0.6 ms."""

    def seconds(name: str, ranks: float) -> float:
        source = source_for(gpu(name), "collective", "half", "all_reduce")
        return float(seconds_of(source, {"num_gpus": ranks, "bytes": 2.0**26}))

    moved_s = 2.0 * 7 / 8 * 2**26 / 31e9  # over PCIe 4.0
    for name in ("A100-PCIE-80GB", "A40", "A30"):
        assert moved_s < seconds(name, 8.0) < 10 * moved_s
    assert seconds("H200-NVL-141GB", 8.0) > 10 * seconds("H200-NVL-141GB", 4.0)  # four are bridged
    assert seconds("RTX 4090", 2.0) == pytest.approx(2 * seconds("RTX 6000 Ada", 2.0), rel=0.05)  # no p2p
    assert seconds("MI300X", 2.0) > 2 * seconds("MI300X", 8.0) > 2 * seconds("H100", 8.0)  # one link of seven


@pytest.mark.parametrize("name", ["RTX 3090", "RTX 4090", "RTX 5090", "T4", "A10", "B300"])
def test_no_product_is_quicker_than_its_peak(name: str) -> None:
    """Cards that accumulate at half rate took over what a timed card had above its usual share: 1.12."""
    source = source_for(gpu(name), "gemm", "fp16")
    kernel = source_for(gpu("l40s"), "gemm", "bf16").timed
    shapes = sizes_of("gemm", timings(kernel.gpu, "gemm")[kernel.column].shapes)
    m, n, k = (numpy.array([shape[size] for shape in shapes]) for size in "mnk")
    reached = 2.0 * m * n * k / seconds_of(source, {"m": m, "n": n, "k": k})
    assert 0.4 < max(reached) / gpu(name).flops_per_s["fp16"] <= 1.0 + 1e-9


def test_a_name_of_a_way_through_pytorch_is_no_kernel() -> None:
    """TensorRT-LLM's blocks of fp8 are another kernel on each chip; by one name, an L40S stood for H100's."""
    spec, without = gpu("h100"), ("H100-SXM5-80GB",)
    left_out = source_for(spec, "gemm", "fp8_block", "torch_flow", without=without)
    assert left_out.timed.kernel == "deepgemm"
    assert source_for(gpu("h200"), "gemm", "fp8_block", "torch_flow").timed.kernel == "torch_flow"


def test_kernels_of_experts_are_answered_by_those_of_their_language() -> None:
    """TensorRT-LLM's CUTLASS on H100 was answered by its Triton kernel on RTX PRO 6000, 4.4 times as slow."""
    h100 = gpu("h100")
    for kernel, dtype, word in (
        ("moe_torch_flow_cutlass", "fp8", "cutlass"),
        ("vllm_fp8moe_triton", "fp8_block", "triton"),
    ):
        source = source_for(h100, "experts", "fp8_block", kernel, without=(h100.name,))
        assert {fit.timed.dtype for fit, _ in source.parts} == {dtype}
        assert all(word in fit.timed.kernel for fit, _ in source.parts)


def test_a_kernel_timed_with_one_width_does_not_speak_for_others() -> None:
    """B200's CUTLASS was timed with one model: for others it is 37 to 59 % off, its other kernel 11 to 19."""
    assert source_for(gpu("b300"), "experts", "fp8", "moe_torch_flow_cutlass").timed.rows > 300


def test_experts_without_a_gate_have_two_products_of_three() -> None:
    sizes = sizes_of("experts", [("65536", "4096", "14336", "2", "8", "1", "balanced")])[0]
    gated, plain = (
        seconds_of(source_for(gpu("b300"), "experts", "nvfp4", f"moe_torch_flow_{name}"), sizes)
        for name in ("cutlass", "nongated")
    )
    assert 0.63 * gated < plain < 0.75 * gated
