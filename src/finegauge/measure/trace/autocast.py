"""CUDA's autocast on CPU and fake tensors.

PyTorch's autocast keeps a list of operators per device: those that run in 16 bit, those
that run in fp32. The CPU's second list is much shorter than CUDA's. While `cuda_lists` is
open, the operators of CUDA's fp32 list [1] are registered for the CPU too, so that a
trace casts where a GPU would.

[1] ATen/autocast_mode.h of torch 2.13, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

RUN_IN_FP32 = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "rms_norm",
    "group_norm", "logsumexp", "nll_loss", "cosine_similarity", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
FP32_RESULT = ("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
               "sum.dim_IntList", "linalg_vector_norm")  # fmt: skip
NARROW = (torch.bfloat16, torch.float16)


def _wide(value: Any) -> Any:
    """Return a 16-bit tensor as fp32 and anything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in NARROW else value


def _casting(op: Any, *, sets_dtype: bool) -> Callable[..., Any]:
    """Return `op` as autocast runs it: on fp32 inputs, or with an fp32 result."""
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key_set):
            if not sets_dtype:
                return op(*tree_map(_wide, args), **tree_map(_wide, kwargs))
            first, stated = args[0], kwargs.get("dtype") is not None
            stated = stated or any(isinstance(arg, torch.dtype) for arg in args)
            if not stated and isinstance(first, torch.Tensor) and first.dtype in NARROW:
                kwargs = {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return run


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Let autocast on the CPU cast what autocast on CUDA casts."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in (*RUN_IN_FP32, *FP32_RESULT):
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, _casting(op, sets_dtype=name in FP32_RESULT), "AutocastCPU")
        yield
    finally:
        library._destroy()
