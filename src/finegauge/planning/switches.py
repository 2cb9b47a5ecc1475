"""The changes that `finegauge whatif` tries, each on its own, on the run as it is.

A switch is named after the optimisation it turns on. It answers with the fields that it changes,
or with the sentence that says why it changes nothing here. The sequences of an optimizer step stay
the same wherever they can: accumulation makes up for other micro-batches and other numbers of GPUs.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError

if TYPE_CHECKING:
    from finegauge.run.run import Run

Changes = Mapping[str, Any]
Change = Callable[["Run"], Changes | str]  # fields with their new values, or why there are none

OTHER_GPUS = ("L4", "RTX 4090", "A40", "L40S", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB",
              "B200-SXM-180GB", "MI300X")  # fmt: skip
GPUS_OF_A_NODE = 8
ALREADY = "the run has it already"
SEARCHING = ("bigger-micro-batch", "bigger-batch")  # that try many sizes before they answer
STATE_SPACE = ("mamba", "ssm")


class Switch(NamedTuple):
    """One change: its name, the fields it sets, and what it asks for in return."""

    name: str
    change: Change
    breaks: str  # "" where nothing but figures changes


def _sets(**fields: Any) -> Change:
    """Return the change that gives `fields` these values."""

    def change(run: "Run") -> Changes | str:
        already = all(getattr(run, name) == value for name, value in fields.items())
        return ALREADY if already else fields

    return change


def _shards(sharding: str) -> Change:
    """Return the change to one way of sharding among data-parallel ranks."""

    def change(run: "Run") -> Changes | str:
        whole = sharding in ("none", "hybrid") or run.data_parallel_replicate == 1
        if run.sharding == sharding and whole:
            return ALREADY  # and not among some of the ranks only
        if run.data_parallel == 1:
            return "there is one data-parallel rank: nothing to share; ask with --set num_gpus=8"
        return {"sharding": sharding, "data_parallel_replicate": None, "data_parallel_shard": None}

    return change


def _kernels(name: str) -> Change:
    """Return the change that adds a library's kernels, with the fused loss it brings."""

    def change(run: "Run") -> Changes | str:
        if name in run.kernels:
            return ALREADY
        if _has_state_space(run):
            return "it has no kernels for state-space models"
        if "unsloth" in (*run.kernels, name) and run.kernels:
            return f"the run has {run.kernels[0]}'s kernels, which these replace"
        return {"kernels": (*run.kernels, name), "loss": "fused"}

    return change


def _bf16(run: "Run") -> Changes | str:
    if run.weights_dtype not in ("fp32", "fp16"):
        return "the weights are 16 bits wide or fewer already"
    return {"weights_dtype": "bf16", "autocast": "none"}


def _autocast(run: "Run") -> Changes | str:
    if run.weights_dtype != "fp32" or run.autocast != "none":
        return "it is for fp32 weights that compute in fp32"
    return {"autocast": "bf16"}


def _fp16(run: "Run") -> Changes | str:
    if run.autocast == "fp16" or run.weights_dtype == "fp16":
        return ALREADY
    if run.weights_dtype != "fp32":
        return "it is autocast over fp32 weights; set weights_dtype=fp32, or weights_dtype=fp16 itself"
    return {"autocast": "fp16"}


def _half_rank(run: "Run") -> Changes | str:
    if not run.trains_adapters or run.lora_rank == 1:
        return "it needs adapters of rank 2 or more"
    return {"lora_rank": run.lora_rank // 2}


def _model_experts(run: "Run") -> Changes | str:
    if run.num_experts_per_tok is None:
        return "the run activates as many experts as the model says"
    return {"num_experts_per_tok": None}


def _experts(implementation: str) -> Change:
    """Return the change of how the experts of a layer are computed."""

    def change(run: "Run") -> Changes | str:
        if not _has_experts(run):
            return "the model has no experts"
        return _sets(experts_implementation=implementation)(run)

    return change


def _fused_scan(run: "Run") -> Changes | str:
    if not _has_state_space(run):
        return "the model has no state-space layers"
    return _sets(ssm_kernels="fused")(run)


def _has_state_space(run: "Run") -> bool:
    """Return whether the model is one of state-space layers."""
    return any(word in str(run.config.get("model_type", "")).lower() for word in STATE_SPACE)


def _has_experts(run: "Run") -> bool:
    """Return whether tokens of the model are routed to experts."""
    return any(key in run.config for key in ("num_experts_per_tok", "num_local_experts", "mamba_moe_layers"))


def _in_backward(run: "Run") -> Changes | str:
    if run.gradient_accumulation_steps > 1:
        return "it updates after every micro-batch, so nothing accumulates; set gradient_accumulation_steps=1"
    return _sets(optimizer_implementation="in_backward")(run)


def _packing(run: "Run") -> Changes | str:
    """Pack rows, as many of them as hold the samples that a step had before."""
    from finegauge.data.batch_shape import shape

    if run.packing:
        return ALREADY
    if run.dataset is None:
        return "the lengths of the samples are not known; add dataset=…"
    try:
        packed = run.replace(packing=True)
    except FieldError as error:  # a phase that compares sequences, grouping by length
        return str(error)
    per_row = shape(packed).samples / packed.micro_batch_size
    rows = max(1, round(run.micro_batch_size * run.gradient_accumulation_steps / per_row))
    micro = max(size for size in divisors(rows) if size <= run.micro_batch_size)
    return {"packing": True, "micro_batch_size": micro, "gradient_accumulation_steps": rows // micro}


def _padding_free(run: "Run") -> Changes | str:
    if run.dataset is None:
        return "the lengths of the samples are not known; add dataset=…"
    return _sets(padding="free")(run)


def _double_micro_batch(run: "Run") -> Changes | str:
    steps = run.gradient_accumulation_steps
    if steps % 2:
        return f"gradient_accumulation_steps={steps} cannot be halved; 'bigger-batch' lets the batch grow"
    return {"micro_batch_size": 2 * run.micro_batch_size, "gradient_accumulation_steps": steps // 2}


def _half_micro_batch(run: "Run") -> Changes | str:
    if run.micro_batch_size % 2:
        return f"micro_batch_size={run.micro_batch_size} cannot be halved"
    return {
        "micro_batch_size": run.micro_batch_size // 2,
        "gradient_accumulation_steps": 2 * run.gradient_accumulation_steps,
    }


def _bigger_micro_batch(run: "Run") -> Changes | str:
    """Take the largest micro-batch that divides a rank's share of the batch and is safe."""
    rank_batch = run.micro_batch_size * run.gradient_accumulation_steps
    larger = [size for size in divisors(rank_batch) if size > run.micro_batch_size]
    if not larger:
        return "a micro-batch holds a rank's whole batch already; 'bigger-batch' lets the batch grow"
    for size in reversed(larger):
        changes: dict[str, Any] = {
            "micro_batch_size": size,
            "gradient_accumulation_steps": rank_batch // size,
        }
        if _is_safe(run.replace(**changes)):
            return changes
    return f"not even micro_batch_size={larger[0]} is safe"


def _bigger_batch(run: "Run") -> Changes | str:
    """Take the largest micro-batch that is safe, and let the batch of a step grow with it."""
    from dataclasses import replace

    from finegauge.planning.capacity import max_micro_batch_size
    from finegauge.prediction.predictor import predict

    def cautious(asked: "Run") -> Any:
        profile = predict(asked)
        return profile if _is_safe(asked) else replace(profile, outcome="out_of_memory")

    size = max_micro_batch_size(run, cautious, limit=max(256, run.micro_batch_size)).value
    if size <= run.micro_batch_size:
        return "no larger micro-batch is safe"
    return {"micro_batch_size": size}


def _is_safe(run: "Run") -> bool:
    """Return whether `run` is not even risky."""
    from finegauge.prediction.predictor import predict
    from finegauge.prediction.uncertainty import FITS, probability_out_of_memory, verdict

    return verdict(probability_out_of_memory(predict(run))) == FITS


def _more_gpus(times: int) -> Change:
    """Return the change to `times` as many GPUs, accumulation making up for them."""

    def change(run: "Run") -> Changes | str:
        num_gpus, nodes = run.num_gpus * times, run.num_nodes
        if num_gpus > nodes * GPUS_OF_A_NODE:
            nodes = -(-num_gpus // GPUS_OF_A_NODE)
        if num_gpus % nodes:
            return f"{num_gpus} GPUs do not fill nodes of {GPUS_OF_A_NODE}"
        return {
            "num_gpus": num_gpus, "num_nodes": nodes,
            "data_parallel_replicate": None, "data_parallel_shard": None, **_batch(run, times),
        }  # fmt: skip

    return change


def _fewer_gpus(run: "Run") -> Changes | str:
    if run.data_parallel % 2:
        return "the data-parallel ranks cannot be halved"
    num_gpus = run.num_gpus // 2
    return {
        "num_gpus": num_gpus, "num_nodes": max(1, run.num_nodes // 2),
        "data_parallel_replicate": None, "data_parallel_shard": None,
        "gradient_accumulation_steps": 2 * run.gradient_accumulation_steps,
    }  # fmt: skip


def _batch(run: "Run", times: int) -> Changes:
    """Return micro-batch and accumulation with which `times` as many ranks keep the batch of a step."""
    rank_batch = run.micro_batch_size * run.gradient_accumulation_steps
    if rank_batch % times:
        return {}
    share = rank_batch // times
    micro = max(size for size in divisors(share) if size <= run.micro_batch_size)
    return {"micro_batch_size": micro, "gradient_accumulation_steps": share // micro}


def _degree(name: str) -> Change:
    """Return the change that doubles a degree of model parallelism at the same number of GPUs."""

    def change(run: "Run") -> Changes | str:
        if run.data_parallel % 2:
            return "it takes two ranks where there was one: needs an even number of data-parallel ranks"
        rank_batch = run.micro_batch_size * run.gradient_accumulation_steps
        return {
            name: 2 * getattr(run, name), "data_parallel_replicate": None, "data_parallel_shard": None,
            "gradient_accumulation_steps": 2 * rank_batch // run.micro_batch_size,
        }  # fmt: skip

    return change


def _expert_parallel(run: "Run") -> Changes | str:
    if run.num_gpus == 1:
        return "it needs more than one GPU"
    return {"expert_parallel": 2 * run.expert_parallel}


def gpu_switch(name: str) -> Switch:
    """Return the switch to another GPU.

    Raises: UnknownNameError where the catalogue has none of this name.
    """
    from finegauge.catalogue.gpus import gpu

    found = gpu(name).name
    return Switch(found, _sets(gpu=found), "")


def field_switch(text: str) -> Switch:
    """Return the switch that sets one field of the run, "seq_len=1024".

    Raises: UnknownKeyError where no field has this name.
    """
    import yaml

    from finegauge.errors import UnknownKeyError
    from finegauge.run.run import FIELDS

    name, _, value = text.partition("=")
    if name not in FIELDS:
        raise UnknownKeyError("whatif", name, known=FIELDS)
    return Switch(text, _sets(**{name: FIELDS[name](name, yaml.safe_load(value))}), "")


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, the smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


SWITCHES: tuple[Switch, ...] = (
    Switch("full", _sets(method="full"), "every weight trains and is saved"),
    Switch("lora", _sets(method="lora"), "only adapters train; a full fine-tune can learn more"),
    Switch("qlora", _sets(method="qlora"), "only adapters train, beside weights rounded to 4 bits (NF4)"),
    Switch("freeze", _sets(method="freeze"), "only the last layers train"),
    Switch("half-rank", _half_rank, "adapters of half the rank can express less"),
    Switch("checkpointing", _sets(activation_checkpointing="full"), ""),
    Switch("no-checkpointing", _sets(activation_checkpointing="none"), ""),
    Switch("selective-checkpointing", _sets(activation_checkpointing="selective"), ""),
    Switch("offloaded-checkpoints", _sets(activation_checkpointing="offload"),
           "checkpoints lie in the host's memory"),
    Switch("8bit-optimizer", _sets(optimizer="adamw_8bit"), "moments rounded to 8 bits; needs bitsandbytes"),
    Switch("paged-optimizer", _sets(optimizer="paged_adamw_8bit"),
           "8-bit moments, on the host where memory runs short; needs bitsandbytes"),
    Switch("adafactor", _sets(optimizer="adafactor"), "another optimizer: factored second moments"),
    Switch("lion", _sets(optimizer="lion"), "another optimizer: one moment, a smaller learning rate"),
    Switch("sgd", _sets(optimizer="sgd"), "another optimizer: no moments; seldom trains transformers well"),
    Switch("fused-optimizer", _sets(optimizer_implementation="fused"), ""),
    Switch("optimizer-in-backward", _in_backward,
           "no accumulation and no clipping over all gradients"),
    Switch("flash-attention", _sets(attention="flash"), "needs flash-attn and an Ampere card or later"),
    Switch("sdpa", _sets(attention="sdpa"), ""),
    Switch("eager-attention", _sets(attention="eager"), ""),
    Switch("fused-loss", _sets(loss="fused"), "needs a fused linear cross-entropy, as Liger's"),
    Switch("chunked-loss", _sets(loss="chunked"), "needs a loss in chunks (torchtune, TRL from 1.8 on)"),
    Switch("liger", _kernels("liger"), "needs liger-kernel, which has no kernels for some models"),
    Switch("unsloth", _kernels("unsloth"), "needs Unsloth as the trainer"),
    Switch("compile", _sets(compile=True), "the first steps compile; every new length may do so again"),
    Switch("bf16", _bf16, "weights round at every update: small learning rates may lose them"),
    Switch("autocast", _autocast, "products and activations in bf16"),
    Switch("fp16", _fp16, "products and activations in fp16: needs loss scaling, for fp16 overflows"),
    Switch("packing", _packing, "samples share rows: needs attention that keeps them apart"),
    Switch("padding-free", _padding_free, "needs FlashAttention's variable lengths"),
    Switch("double-micro-batch", _double_micro_batch, ""),
    Switch("bigger-micro-batch", _bigger_micro_batch, ""),
    Switch("half-micro-batch", _half_micro_batch, ""),
    Switch("bigger-batch", _bigger_batch, "the learning rate is to be chosen again"),
    Switch("ddp", _shards("none"), ""),
    Switch("zero1", _shards("zero1"), "needs DeepSpeed"),
    Switch("zero2", _shards("zero2"), "needs DeepSpeed"),
    Switch("zero3", _shards("zero3"), "needs DeepSpeed"),
    Switch("fsdp", _shards("fsdp"), ""),
    Switch("fsdp-keep-weights", _shards("fsdp_shard_grad_op"), ""),
    Switch("hybrid-shard", _shards("hybrid"), ""),
    Switch("offload-optimizer", _sets(cpu_offload="optimizer"),
           "needs DeepSpeed or FSDP, and that much host memory"),
    Switch("offload-all", _sets(cpu_offload="all"), "needs DeepSpeed or FSDP, and that much host memory"),
    Switch("tensor-parallel", _degree("tensor_parallel"),
           "needs a framework that divides layers (Megatron, NeMo, torchtitan)"),
    Switch("pipeline-parallel", _degree("pipeline_parallel"),
           "needs a framework that divides layers into stages (Megatron, NeMo, torchtitan)"),
    Switch("context-parallel", _degree("context_parallel"),
           "needs ring attention (NeMo, torchtitan, Axolotl)"),
    Switch("expert-parallel", _expert_parallel,
           "needs a framework that divides experts (Megatron, NeMo, torchtitan)"),
    Switch("half-gpus", _fewer_gpus, ""),
    Switch("double-gpus", _more_gpus(2), ""),
    Switch("8x-gpus", _more_gpus(8), ""),
    Switch("model-experts", _model_experts, "other experts than asked for see each token"),
    Switch("grouped-experts", _experts("grouped_mm"), "needs transformers 5"),
    Switch("loop-experts", _experts("eager"), ""),
    Switch("fused-scan", _fused_scan, "needs mamba-ssm and causal-conv1d"),
)  # fmt: skip

OTHER_NAMES: Mapping[str, str] = {
    "fsdp2": "fsdp",
    "cpu-offload": "offload-all",
    "gradient-checkpointing": "checkpointing",
    "full-checkpointing": "checkpointing",
    "flash": "flash-attention",
    "eager": "eager-attention",
    "torch-compile": "compile",
}


def known_switches() -> tuple[str, ...]:
    """Return the names of all switches, and the other names that some have."""
    return (*(switch.name for switch in SWITCHES), *OTHER_NAMES)


def switch_named(name: str) -> Switch | None:
    """Return the switch of that name, whatever its case and underscores; None where there is none."""
    folded = name.strip().casefold().replace("_", "-")
    folded = OTHER_NAMES.get(folded, folded)
    return next((switch for switch in SWITCHES if switch.name == folded), None)
