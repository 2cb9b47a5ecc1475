"""Every operator has a kind of work, by its own name or that of the one that called it."""

import pytest

from finegauge.measurement.instruments.kernel_trace import HOST, OTHER, kind_of_kernel, kind_of_operator


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matmul"),
        ("aten::_grouped_mm", "matmul"),
        ("aten::addmm", "matmul"),
        ("bitsandbytes::gemm_4bit", "matmul"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("bitsandbytes::dequantize_4bit", "dequantise"),
        ("bitsandbytes::quantize_4bit", "quantise"),
        ("aten::topk", "top-k"),
        ("aten::_softmax_backward_data", "softmax"),
        ("aten::_log_softmax_backward_data", "loss"),
        ("aten::nll_loss_forward", "loss"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::silu_backward", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::_foreach_addcmul_", "elementwise"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::convolution_backward", "convolution"),
        ("aten::index_put_", "gather"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::copy_", "copy"),
        ("aten::_to_copy", "copy"),
        ("aten::sum", "reduction"),
        ("aten::view", HOST),
        ("aten::transpose", HOST),
        ("aten::empty_strided", HOST),
        ("autograd::engine::evaluate_function: MmBackward0", HOST),
        ("MmBackward0", HOST),
        ("CheckpointFunction", HOST),
        ("mamba_ssm::selective_scan", "scan"),
        ("nccl:all_reduce", "communication"),
        ("aten::a_word_of_tomorrow", OTHER),
    ],
)
def test_operator(name: str, kind: str) -> None:
    assert kind_of_operator(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>", "matmul"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT", "matmul"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "dequantise"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("void at::native::(anonymous namespace)::softmax_warp_forward<...>", "softmax"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "top-k"),
        ("void at::native::vectorized_elementwise_kernel<4, ...silu...>", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, ...>", "reduction"),
        ("void selective_scan_fwd_kernel<...>", "scan"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("triton_poi_fused_mul_silu_3", "elementwise"),
        ("what_is_this", OTHER),
    ],
)
def test_kernel(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind
