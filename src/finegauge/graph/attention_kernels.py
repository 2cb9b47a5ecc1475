"""Which attention a run has: the implementation, its kernel's generation, whether the host waits for it."""

from finegauge.graph.blocks import Architecture
from finegauge.workload.implementation import version_numbers
from finegauge.workload.run import Run

FRAMEWORKS_WITH_OWN_MODELS = (
    "foundry",
    "composer",
    "litgpt",
    "torchtune",
    "internevo",
    "qwen",
    "megatron",
    "torchtitan",
)


def implemented_attention(run: Run, model: Architecture, *, litgpt: bool) -> str:
    """Return the attention that runs: what is asked for, unless the model's code has it not."""
    has = run.attention in model.numerics.kernels or has_own_models(run)
    return run.attention if has and not (litgpt and model.numerics.softcap) else "eager"


def attention_generation(run: Run) -> int:
    """Return FlashAttention's generation; Megatron's layers have cuDNN's kernel where that is the fastest.

    So has PyTorch's sdpa: from 2.10, of the months of transformers 5, cuDNN's comes first on Hopper
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention).
    """
    if "triton" in run.kernels:
        return 1
    today = version_numbers(run.transformers_version) >= (5, 0, 0) and not has_own_models(run)
    cudnn = run.attention == "sdpa" and today
    return 3 if cudnn or {"flash3", "megatron"} & set(run.kernels) else 2


def unpads(run: Run) -> bool:
    """Return whether every layer asks the device where sequences begin, as transformers' FlashAttention does.

    Of a mask it takes the places that are not padding, of position ids those that are zero, and the longest
    length by `.item()`: the host waits (modeling_flash_attention_utils.py of 4.44 and 5.23).
    """
    varied = run.padding == "free" or (run.dataset is not None and not run.packing)
    return varied and run.attention == "flash" and not has_own_models(run)


def has_own_models(run: Run) -> bool:
    """Return whether the framework brings its own code of the model, which has the attention it asks for."""
    return any(name in run.framework.lower() for name in FRAMEWORKS_WITH_OWN_MODELS)
