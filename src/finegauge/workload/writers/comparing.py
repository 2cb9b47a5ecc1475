"""What the files of a framework say otherwise than the run that they were written from.

Found by reading them back. A field that changes nothing in this run (a padding where every sequence
is as long as the cut-off) is passed over; one that makes it another plan is refused; of the rest the
user is warned, with both values.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError, InputError
from finegauge.workload.parallelism import DATA_DEGREES
from finegauge.workload.run import CHECKS
from finegauge.workload.writers.sheet import DENSE, LINEAR, model_type, plain

if TYPE_CHECKING:
    from finegauge.workload.run import Run

# About the machine, the bill, the data and the record: no framework's business, carried in a comment.
FACTS = (
    "gpu", "num_gpus", "num_nodes", "node_network_gbit_per_s", "provider", "region", "startup_s",
    "saves_per_epoch", "eval_samples", "dataset", "num_samples", "tokenizer", "ssm_kernels",
    "framework_version", "transformers_version", "bitsandbytes_version",
)  # fmt: skip
# Carried too, but somebody has to see to it.
TO_DO = {"num_experts_per_tok": "set it in the model's config.json, which the framework reads"}
_REFUSED = """
model method phase lora_rank lora_targets trainable_extra freeze_trainable_layers seq_len packing
micro_batch_size gradient_accumulation_steps max_steps num_gpus num_nodes tensor_parallel
pipeline_parallel context_parallel expert_parallel virtual_pipeline_stages
"""
REFUSED = frozenset(_REFUSED.split())
_SHARDED = {"none": 0, "zero1": 1, "zero2": 2, "fsdp_shard_grad_op": 2, "zero3": 3, "fsdp": 3, "hybrid": 3}
_OF_ADAPTERS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "adapter_dtype")
_OF_EXPERTS = ("experts_implementation", "quantize_experts")
_OF_LENGTHS = ("padding", "pad_to_multiple_of", "over_length", "group_by_length")
_BY_FSDP = ("none", "fsdp", "fsdp_shard_grad_op", "hybrid")
_WRITING = ("ppo", "grpo", "decode")


class Difference(NamedTuple):
    """One field that the files state otherwise."""

    field: str
    asked: Any
    written: Any


def differences(asked: "Run", written: "Run") -> list[Difference]:
    """Return the fields that the two runs do not share and that matter to `asked`."""
    return [
        Difference(field, getattr(asked, field), getattr(written, field))
        for field in CHECKS
        if field != "framework"
        and getattr(asked, field) != getattr(written, field)
        and not _same(field, asked, written)
    ]


def _same(field: str, asked: "Run", written: "Run") -> bool:
    """Return whether a field that differs makes no difference to `asked`."""
    if field == "framework_version":
        return asked.framework != written.framework
    if field == "model":
        return _same_model(asked.model, written.model)
    if field == "lora_targets" and asked.trains_adapters:
        return _layers(asked) == _layers(written)
    if field in DATA_DEGREES and asked.data_parallel == written.data_parallel:
        return asked.sharding == "none" or asked.sharding != written.sharding
    return field in _without_effect(asked)


def _without_effect(run: "Run") -> Iterator[str]:
    """Return the fields that change nothing in `run`."""
    for fields, idle in (
        (_OF_ADAPTERS, not run.trains_adapters),
        (("trainable_extra",), run.method == "full"),
        (_OF_EXPERTS, not _has_experts(run)),
        (("checkpointing_reentrant",), run.activation_checkpointing == "none"),
        (("pipeline_schedule", "virtual_pipeline_stages"), run.pipeline_parallel == 1),
        (("sequence_parallel",), run.tensor_parallel == 1),
        (("max_new_tokens", "num_generations"), run.phase not in _WRITING),
        (("epochs",), run.max_steps is not None and not run.num_samples and run.dataset is None),
        (("packing_strategy",), not run.packing or run.dataset is None),
        (_OF_LENGTHS, run.dataset is None),
        (("pad_to_multiple_of",), run.padding != "longest"),
        (("sharding",), run.data_parallel * run.context_parallel == 1 and run.sharding in _BY_FSDP),
    ):
        if idle:
            yield from fields


def _has_experts(run: "Run") -> bool:
    """Return whether the model routes tokens to experts; yes where it is not known."""
    from finegauge.workload.model import num_experts

    try:
        config = run.config
    except FineGaugeError:
        return True
    return bool(num_experts(config.get("text_config") or config))


def _same_model(asked: str, written: str) -> bool:
    """Return whether two names are one model of the catalogue."""
    from finegauge.workload.run import figures

    try:
        return figures(asked).config == figures(written).config
    except FineGaugeError:
        return False


def _layers(run: "Run") -> frozenset[str]:
    """Return the adapted layers, all-linear and attention by name where the model's are the usual ones."""
    named = set(run.lora_targets)
    family = model_type(run)
    if family in DENSE and named & {"all-linear"}:
        named |= set(LINEAR)
        named -= {"all-linear"}
    if "attention" in named:
        named |= set(LINEAR[:4])
        named -= {"attention"}
    return frozenset(named)


def refuse_another_plan(framework: str, found: list[Difference]) -> None:
    """Raise where the files would carry out another plan.

    Raises: InputError naming the field and what the framework makes of it.
    """
    for difference in found:
        if difference.field in REFUSED or _weaker(difference):
            raise InputError(
                f"{framework} cannot say {difference.field}={plain(difference.asked)}: its files would mean "
                f"{plain(difference.written)}, which is another plan; change the run or the framework."
            )


def _weaker(difference: Difference) -> bool:
    """Return whether less is sharded or offloaded than asked."""
    if difference.field == "sharding":
        return _SHARDED.get(difference.written, 0) < _SHARDED.get(difference.asked, 0)
    return difference.field == "cpu_offload" and difference.written == "none"


def warnings(framework: str, found: list[Difference]) -> tuple[str, ...]:
    """Return a sentence for every field that the files state otherwise."""
    return tuple(
        f"{framework} cannot say {field}={plain(asked)}: its files mean {field}={plain(written)}."
        for field, asked, written in found
    )
