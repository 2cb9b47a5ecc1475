"""Which kind of work an operator or a kernel does: matmul, dequantise, top-k, softmax, elementwise, ...

Operators are known by PyTorch's names, kernels by words in theirs; where an operator
launched a kernel, the operator decides, since its name says what was asked and the
kernel's only how. A general operator (a copy, a product) called by a telling one (an
attention, a dequantisation) is of the telling one's kind.
"""

import re

from finegauge.measure.instruments.chrome_trace import Operator

HOST = "host"  # views, allocation and the engine: no work on data
OTHER = "other"
OPTIMIZER_RANGE = "Optimizer."  # torch wraps every optimizer's step in such a range

# A whole word of the operator's name without its namespace, in the order in which they are tried.
_OPERATORS = (
    (
        "host",
        r"view|_unsafe_view|reshape|_reshape_alias|as_strided|t|transpose|permute|expand|select|slice|narrow|"
        r"split|chunk|unbind|squeeze|unsqueeze|alias|detach|resolve_conj|resolve_neg|lift_fresh|result_type|"
        r"empty|empty_like|empty_strided|new_empty|new_empty_strided|resize|set|item|_local_scalar_dense|"
        r"is_nonzero|unflatten|flatten|movedim|swapaxes|numpy_T|mT|view_as|expand_as|broadcast_to|diagonal|"
        r"split_with_sizes|unfold|_has_compatible_shallow_copy_type|requires_grad|size|stride|real|"
        r"detach_|record_stream|_version|is_pinned|_resize_output|equal|unsafe_split|type_as|meshgrid",
    ),
    (
        "matmul",
        r"mm|addmm|_addmm_activation|bmm|baddbmm|matmul|linear|_grouped_mm|_scaled_mm|_scaled_grouped_mm|"
        r"addmv|mv|dot|outer|addr|einsum|tensordot|mkldnn_linear|_mkl_linear|_linear_pointwise|bilinear|"
        r"gemm_4bit|gemv_4bit|int8_linear_matmul|int8_scaled_mm|_int_mm",
    ),
    (
        "attention",
        r".*scaled_dot_product.*|_?flash_attention.*|_?efficient_attention.*|.*flash_attn.*|.*fmha.*",
    ),
    ("dequantise", r".*dequant.*"),
    ("quantise", r".*quantize.*|int8_vectorwise_quant|int8_double_quant"),
    (
        "top-k",
        r"topk|sort|argsort|kthvalue|histc|bincount|one_hot|argmax|unique.*|_unique2|nonzero.*|searchsorted",
    ),
    (
        "loss",
        r"_?log_softmax.*|nll_loss.*|cross_entropy.*|mse_loss.*|log_sigmoid.*|logsumexp|kl_div|huber_loss",
    ),
    ("softmax", r"_?softmax.*|_safe_softmax.*|_masked_softmax.*"),
    (
        "norm",
        r".*(layer_norm|rms_norm|group_norm|batch_norm).*|rsqrt|.*norm_backward|linalg_vector_norm|norm",
    ),
    ("convolution", r".*conv(olution|1d|2d|3d|_depthwise).*|causal_conv.*|slow_conv.*|conv_.*|thnn_conv.*"),
    ("scan", r".*selective_scan.*|.*mamba.*|.*ssd_.*|.*chunk_scan.*|associative_scan|cumprod|.*delta_rule.*"),
    ("embedding", r"embedding.*"),
    ("optimizer", r"_fused_(adamw?|sgd|adagrad).*|optimizer_update.*"),
    (
        "communication",
        r"nccl.*|gloo.*|c10d.*|all_?reduce.*|all_?gather.*|reduce_?scatter.*|broadcast|barrier",
    ),
    (
        "gather",
        r"index.*|_?index_put.*|gather.*|scatter.*|_unsafe_index.*|take.*|masked_select|masked_scatter|"
        r"slice_backward|select_backward|value_selecting_reduction_backward|cat|stack|constant_pad_nd|pad|"
        r"roll|flip|repeat|repeat_interleave|tril|triu|as_strided_scatter|slice_scatter|tile",
    ),
    ("copy", r"copy|_to_copy|to|clone|contiguous|pin_memory|_pin_memory|_cast.*|type|_foreach_copy"),
    (
        "reduction",
        r"sum|mean|max|min|amax|amin|prod|any|all|var|std|count_nonzero|cumsum|var_mean|_foreach_(norm|max)|"
        r"sum_to_size|aminmax",
    ),
    (
        "random",
        r"rand.*|normal|uniform|bernoulli|multinomial|native_dropout.*|.*dropout.*|exponential|random",
    ),
    (
        "elementwise",
        r"_foreach_.*|add|sub|rsub|mul|div|pow|sqrt|exp|log|log1p|expm1|neg|abs|sign|cos|sin|tanh.*|sigmoid.*|"
        r"silu.*|gelu.*|relu.*|threshold.*|softplus.*|mish.*|hardswish.*|leaky_relu.*|elu.*|glu.*|clamp.*|"
        r"where|masked_fill.*|fill|zero|zeros|ones|zeros_like|ones_like|full|full_like|new_zeros|new_ones|"
        r"new_full|arange|linspace|addcmul|addcdiv|lerp|eq|ne|lt|le|gt|ge|greater.*|less.*|bitwise_.*|logical_.*|floor.*|ceil|"
        r"round|trunc|remainder|fmod|maximum|minimum|isnan|isinf|isfinite|reciprocal|square|erf.*|"
        r"nan_to_num|__\w+__|xlogy|atan2|polar|complex|scalar_tensor|AccumulateGrad|is_.*|heaviside|softcap|"
        r"_amp_.*|_efficientzerotensor|allclose|isclose|true_divide|cosh|sinh|positive|diff|fake_quant.*",
    ),
)
_KERNELS = (
    ("communication", r"nccl|ncclDevKernel"),
    ("dequantise", r"dequant"),
    ("quantise", r"quantize"),
    ("attention", r"flash|fmha|attention|cudnn.*sdpa"),
    ("matmul", r"gemm|gemv|cutlass|cublas|xmma|nvjet|wgmma|splitkreduce|grouped_mm"),
    ("scan", r"selective_scan|chunk_scan|chunk_state|state_passing|bmm_chunk"),
    ("convolution", r"conv"),
    ("loss", r"log_?softmax|nll_loss|cross_entropy"),
    ("softmax", r"softmax"),
    ("top-k", r"top_?k|sort|radix|bitonic|histogram|kernelHistogram"),
    ("norm", r"layer_?norm|rms_?norm|rsqrt"),
    ("optimizer", r"adam|multi_tensor_apply|optimizer"),
    ("embedding", r"embedding"),
    ("gather", r"index|gather|scatter|catarray"),
    ("copy", r"^memcpy|copy"),
    ("random", r"dropout|distribution|philox"),
    ("reduction", r"reduce|triton_(red|per)|cumsum|scan"),
    ("elementwise", r"elementwise|^memset|fill|triton_poi|vectorized"),
)
GENERAL = ("elementwise", "copy", "reduction", "gather", "random", OTHER)
_OPERATOR_PATTERNS = tuple((kind, re.compile(rf"(?:{words})_?\Z")) for kind, words in _OPERATORS)
_KERNEL_PATTERNS = tuple((kind, re.compile(words, re.IGNORECASE)) for kind, words in _KERNELS)
_BACKWARD = re.compile(r"(?:Backward\d*|_backward(?:_data|_reduce)?)\Z")


def kind_of_operator(name: str) -> str:
    """Return the kind of the operator called `name`, as the profiler writes it."""
    if name.startswith("autograd::engine"):
        return HOST
    bare = name.rpartition("::")[2]
    for pattern_name in (bare, _BACKWARD.sub("", bare)):
        for kind, pattern in _OPERATOR_PATTERNS:
            if pattern.match(pattern_name):
                return kind
    return (
        OTHER if "::" in name and not _BACKWARD.search(bare) else HOST
    )  # Python's or the engine's, around others


def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel whose operator says nothing."""
    return next((kind for kind, pattern in _KERNEL_PATTERNS if pattern.search(name)), OTHER)


def kind_in_context(operator: Operator) -> str:
    """Return the kind of an operator, seen with those that called it."""
    own = kind_of_operator(operator.name)
    if own == HOST:
        return HOST
    for outer in operator.enclosing():
        if outer.is_range:
            if outer.name.startswith(OPTIMIZER_RANGE):
                return "optimizer"
        elif own in GENERAL and (telling := kind_of_operator(outer.name)) not in (*GENERAL, HOST):
            own = telling
    return own
