"""FLOPs and bytes of operators by the shapes of their inputs, against arithmetic by hand."""

import pytest

from finegauge.measurement.instruments.kernel_table import Work, weighted, work_of
from finegauge.measurement.instruments.kernel_trace import Operator

BF16 = "c10::BFloat16"


def op(
    name: str, *shapes: tuple[int, ...], types: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> Operator:
    types = types or (BF16,) * len(shapes)
    return Operator(
        name, False, 0.0, 1.0, 1, shapes=shapes, types=types, values=values or ("",) * len(shapes)
    )


@pytest.mark.parametrize(
    ("operator", "flops", "num_bytes"),
    [
        (op("aten::mm", (4, 8), (8, 16)), 2 * 4 * 8 * 16, 2 * (32 + 128 + 64)),
        (op("aten::addmm", (16,), (4, 8), (8, 16)), 2 * 4 * 8 * 16, 2 * (16 + 32 + 128 + 64)),
        (op("aten::bmm", (3, 4, 8), (3, 8, 16)), 3 * 2 * 4 * 8 * 16, 3 * 2 * (32 + 128 + 64)),
        (op("aten::_grouped_mm", (10, 8), (4, 8, 16)), 2 * 10 * 8 * 16, 2 * (80 + 512 + 160)),
        (op("aten::_grouped_mm", (8, 10), (10, 16)), 2 * 10 * 8 * 16, 2 * (80 + 160 + 128)),
        (op("aten::mul", (4, 8), (8,)), 0, 2 * (32 + 8 + 32)),
        (op("aten::sum", (4, 8)), 0, 64),
        (op("aten::copy_", (4, 8), (4, 8), types=(BF16, "float")), 0, 32 * 2 + 32 * 4),
    ],
)
def test_work(operator: Operator, flops: float, num_bytes: float) -> None:
    work = work_of(operator)
    assert (work.flops, work.num_bytes) == (flops, num_bytes)
    assert work.dtype == ("bf16" if flops else "")


def test_attention_counts_half_of_the_pairs_where_causal() -> None:
    shapes = ((2, 4, 64, 16),) * 3
    whole = op("aten::_scaled_dot_product_flash_attention", *shapes, values=("", "", "", "0.", "False"))
    causal = op("aten::_scaled_dot_product_flash_attention", *shapes, values=("", "", "", "0.", "True"))
    assert work_of(whole).flops == 2 * 2 * 4 * 64 * 64 * 32
    assert work_of(causal).flops == work_of(whole).flops / 2


def test_attention_backward_is_five_products() -> None:
    shapes = ((2, 4, 64, 16),) * 4
    forward = op("aten::_scaled_dot_product_flash_attention", *shapes[:3])
    backward = op("aten::_scaled_dot_product_flash_attention_backward", *shapes)
    assert work_of(backward).flops == 2.5 * work_of(forward).flops


def test_depthwise_convolution_knows_its_groups() -> None:
    assert work_of(op("aten::convolution", (2, 64, 100), (64, 1, 4))).flops == 2 * 2 * 64 * 100 * 4


def test_dequantise_writes_two_values_per_byte() -> None:
    work = work_of(
        op(
            "bitsandbytes::dequantize_4bit",
            (512, 1),
            (16,),
            (),
            (),
            (),
            (),
            types=("unsigned char", "float", "Scalar", "", "ScalarList", "Scalar"),
            values=("",) * 6,
        )
    )
    assert work.num_bytes == 512 + 16 * 4 + 2 * 512 * 4
    assert work.flops == 0


def test_fused_4_bit_product_reads_its_shape() -> None:
    operator = op(
        "bitsandbytes::gemm_4bit", (8, 256), (65536, 1), (),
        types=(BF16, "unsigned char", "ScalarList"), values=("", "", "[512, 256]"),
    )  # fmt: skip
    assert work_of(operator).flops == 2 * 8 * 256 * 512


def test_look_up_reads_the_rows_asked_for() -> None:
    operator = op("aten::embedding", (32000, 64), (2, 10), types=("float", "long int"))
    assert work_of(operator) == Work(0.0, 2 * 20 * 64 * 4, "")


def test_without_shapes_there_is_no_work() -> None:
    assert work_of(op("aten::mm")) == Work(0.0, 0.0, "")


def test_mean_is_weighted_by_time() -> None:
    assert weighted([(1.0, 0.2), (3.0, 0.6)]) == pytest.approx(0.5)
    assert weighted([]) == 0
