"""Single changes of a run: what each would save and what it needs in return.

A switch is named after the optimisation it turns on. It answers with the fields that it changes,
or with the sentence that says why it changes nothing here. The sequences of an optimizer step stay
the same wherever they can: accumulation makes up for other micro-batches and other numbers of GPUs.

Every variant is answered by `predict` and `quote` like the run itself. Where the length of the run
is not known, both are predicted for the same number of samples, so that they compare. A run that does
`max_steps` steps does as many samples after the change.

Neglects: what two changes do together; 'finegauge plan' searches those.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from finegauge.catalogue.gpus import gpu, gpus, is_file
from finegauge.catalogue.offers import Offer
from finegauge.data.batch_shape import shape
from finegauge.documents import parse_yaml
from finegauge.errors import FieldError, InputError, UnknownKeyError, UnknownNameError, UnsupportedError
from finegauge.planning.quote import OBJECTIVES, Outcome, quote
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION, is_safe, probability_out_of_memory, verdict
from finegauge.profile import Estimator, Profile
from finegauge.records import NamedTuple
from finegauge.run.phases import has_engine
from finegauge.run.rules import LORA_FIELDS, MODEL_DEGREES, RL
from finegauge.run.run import FIELDS, Run

Changes = Mapping[str, Any]

ASSUMED_SAMPLES = 10_000  # where neither the data set nor max_steps is known
LEAST_GAIN_FRACTION = 0.01  # below it a change is no gain
OTHER_GPUS = ("L4", "RTX 4090", "A40", "L40S", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB",
              "B200-SXM-180GB", "MI300X")  # fmt: skip
GPUS_OF_A_NODE = 8
ALREADY = "the run has it already"
NO_LENGTHS = "the lengths of the samples are not known; add dataset=…"
UNDIVIDED: Changes = {"data_parallel_replicate": None, "data_parallel_shard": None}


class Switch(NamedTuple):
    """One change: its name, what it asks for in return, and the fields that it sets."""

    name: str
    breaks: str  # "" where nothing but figures changes
    fields: Any  # {name: value}, or the names of those that `how` sets
    how: Callable[[Run], Changes | str] | None = None  # where the values depend on the run
    lacks: Callable[[Run], str] | None = None  # why there is nothing to change; "" where there is

    def change(self, run: Run) -> Changes | str:
        """Return the fields with their new values, or why there are none."""
        if self.how is not None:
            return self.how(run)
        if self.lacks is not None and (lacking := self.lacks(run)):
            return lacking
        changes: Changes = self.fields
        return ALREADY if all(getattr(run, name) == value for name, value in changes.items()) else changes


def _shards(sharding: str, name: str = "", breaks: str = "") -> Switch:
    def change(run: Run) -> Changes | str:
        whole = sharding in ("none", "hybrid") or run.data_parallel_replicate == 1
        if run.sharding == sharding and whole:
            return ALREADY  # and not among some of the ranks only
        if run.data_parallel == 1:
            return "there is one data-parallel rank: nothing to share; ask with --set num_gpus=8"
        return {"sharding": sharding, **UNDIVIDED}

    return Switch(name or sharding, breaks, ("sharding", *UNDIVIDED), change)


def _kernels(name: str, breaks: str) -> Switch:
    def change(run: Run) -> Changes | str:
        if name in run.kernels:
            return ALREADY
        if _has_state_space(run):
            return "it has no kernels for state-space models"
        if "unsloth" in (*run.kernels, name) and run.kernels:
            return f"the run has {run.kernels[0]}'s kernels, which these replace"
        return {"kernels": (*run.kernels, name), "loss": "fused"}

    return Switch(name, breaks, ("kernels", "loss"), change)


def _has_state_space(run: Run) -> bool:
    return any(name in str(run.config.get("model_type", "")).lower() for name in ("mamba", "ssm"))


def _lacks_experts(run: Run) -> str:
    routed = run.config.keys() & {"num_experts_per_tok", "num_local_experts", "mamba_moe_layers"}
    return "" if routed else "the model has no experts"


def _fp16(run: Run) -> Changes | str:
    if run.autocast == "fp16" or run.weights_dtype == "fp16":
        return ALREADY
    if run.weights_dtype != "fp32":
        return "it is autocast over fp32 weights; set weights_dtype=fp32, or weights_dtype=fp16 itself"
    return {"autocast": "fp16"}


def _lacks_adapters(run: Run) -> str:
    return "" if run.trains_adapters else "it needs adapters; ask for lora+dora or lora+lora-fa"


def _packing(run: Run) -> Changes | str:
    """Pack rows, as many of them as hold the samples that a step had before."""
    if run.packing or (run.dataset is None and run.mean_new_tokens is None):
        return ALREADY if run.packing else NO_LENGTHS
    if run.phase in RL:
        return {"packing": True}
    try:
        packed = run.replace(packing=True)
    except FieldError as error:  # a phase that compares sequences, grouping by length
        return str(error)
    per_row = shape(packed).samples / packed.micro_batch_size
    rows = max(1, round(_rank_batch(run) / per_row))
    return {"packing": True, **micro_batches(rows, run.micro_batch_size)}


def _lacks_engine(run: Run) -> str:
    return "" if has_engine(run) and not run.rollout_gpus else "no rollout engine shares the trainer's GPUs"


def _smaller_engine(run: Run) -> Changes | str:
    """Take the largest share of the GPU for the rollout engine that is safe."""
    from finegauge.planning.capacity import safe_memory_utilization
    from finegauge.prediction.predictor import needed
    from finegauge.prediction.serving import Limits

    if lacking := _lacks_engine(run):
        return lacking
    safe = safe_memory_utilization(run, needed)
    if safe is None:
        return "no share of the GPU is safe"
    return ALREADY if safe >= Limits.of(run).memory_fraction else {"gpu_memory_utilization": safe}


def _rank_batch(run: Run) -> int:
    return run.micro_batch_size * run.gradient_accumulation_steps


def micro_batches(rows: int, most: int) -> Changes:
    """Return the largest micro-batch, no larger than `most`, and the accumulation that make `rows`."""
    micro = max(size for size in divisors(rows) if size <= most)
    return {"micro_batch_size": micro, "gradient_accumulation_steps": rows // micro}


def _double_micro_batch(run: Run) -> Changes | str:
    steps = run.gradient_accumulation_steps
    if steps % 2:
        return f"gradient_accumulation_steps={steps} cannot be halved; 'bigger-batch' lets the batch grow"
    return {"micro_batch_size": 2 * run.micro_batch_size, "gradient_accumulation_steps": steps // 2}


def _half_micro_batch(run: Run) -> Changes | str:
    size, steps = run.micro_batch_size, run.gradient_accumulation_steps
    if size % 2:
        return f"micro_batch_size={size} cannot be halved"
    return {"micro_batch_size": size // 2, "gradient_accumulation_steps": 2 * steps}


def _smaller_micro_batch(run: Run) -> Changes | str:
    """Take the largest smaller micro-batch that divides a rank's share and is safe, 1 where none is."""
    from finegauge.planning.capacity import max_micro_batch_size
    from finegauge.prediction.predictor import needed

    if run.micro_batch_size == 1:
        return "a micro-batch is one sequence already"
    safe = max_micro_batch_size(run, needed, limit=run.micro_batch_size - 1).safe_value
    return micro_batches(_rank_batch(run), max(1, safe))


def _shorter_sequences(run: Run) -> Changes | str:
    """Cut sequences at the longest length that is safe; below half of the run's it would be another task."""
    from finegauge.planning.capacity import max_seq_len
    from finegauge.prediction.predictor import needed

    safe = max_seq_len(run, needed, limit=run.seq_len).safe_value
    return {"seq_len": safe} if 2 * safe >= run.seq_len else "not even half the length is safe"


def _shorter_requests(run: Run) -> Changes | str:
    """Halve what an engine must have room for to start until that is safe."""
    from finegauge.prediction.predictor import needed

    room = run.max_model_len or 0
    while room // 2 >= run.seq_len:
        room //= 2
        if is_safe(needed(run.replace(max_model_len=room))):
            return {"max_model_len": room}
    return "no max_model_len of twice seq_len is stated, or none is safe"


def _bigger_micro_batch(run: Run) -> Changes | str:
    from finegauge.prediction.predictor import needed

    rank_batch = _rank_batch(run)
    larger = [size for size in divisors(rank_batch) if size > run.micro_batch_size]
    if not larger:
        return "a micro-batch holds a rank's whole batch already; 'bigger-batch' lets the batch grow"
    for size in reversed(larger):
        changes = micro_batches(rank_batch, size)
        if is_safe(needed(run.replace(**changes))):
            return changes
    return f"not even micro_batch_size={larger[0]} is safe"


def _bigger_batch(run: Run) -> Changes | str:
    from finegauge.planning.capacity import max_micro_batch_size
    from finegauge.prediction.predictor import needed

    size = max_micro_batch_size(run, needed, limit=max(256, run.micro_batch_size)).safe_value
    return {"micro_batch_size": size} if size > run.micro_batch_size else "no larger micro-batch is safe"


def _more_gpus(times: int, name: str) -> Switch:
    def change(run: Run) -> Changes | str:
        num_gpus, nodes = run.num_gpus * times, run.num_nodes
        if num_gpus > nodes * GPUS_OF_A_NODE:
            nodes = -(-num_gpus // GPUS_OF_A_NODE)
        if num_gpus % nodes:
            return f"{num_gpus} GPUs do not fill nodes of {GPUS_OF_A_NODE}"
        rank_batch, rest = divmod(_rank_batch(run), times)
        batch = {} if rest else micro_batches(rank_batch, run.micro_batch_size)
        return {"num_gpus": num_gpus, "num_nodes": nodes, **UNDIVIDED, **batch}

    return Switch(name, "", ("num_gpus", "num_nodes"), change)


def _half_gpus(run: Run) -> Changes | str:
    if run.data_parallel % 2:
        return "the data-parallel ranks cannot be halved"
    steps = 2 * run.gradient_accumulation_steps
    num_gpus, nodes = run.num_gpus // 2, max(1, run.num_nodes // 2)
    return {"num_gpus": num_gpus, "num_nodes": nodes, **UNDIVIDED, "gradient_accumulation_steps": steps}


def _degree(field: str, breaks: str) -> Switch:
    def change(run: Run) -> Changes | str:
        if run.data_parallel % 2:
            return "it takes two ranks where there was one: needs an even number of data-parallel ranks"
        steps = 2 * run.gradient_accumulation_steps
        return {field: 2 * getattr(run, field), **UNDIVIDED, "gradient_accumulation_steps": steps}

    return Switch(field.replace("_", "-"), breaks, (field,), change)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, the smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


HOST_MEMORY = "needs DeepSpeed or FSDP, and that much host memory"
MODEL_PARALLEL = "(Megatron, NeMo, torchtitan)"
SWITCHES: tuple[Switch, ...] = (
    Switch("full", "every weight trains and is saved", {"method": "full"}),
    Switch("lora", "only adapters train; a full fine-tune can learn more", {"method": "lora"}),
    Switch("qlora", "only adapters train, beside weights rounded to 4 bits (NF4)", {"method": "qlora"}),
    Switch("freeze", "only the last layers train", {"method": "freeze"}),
    Switch("half-rank", "adapters of half the rank can express less", ("lora_rank",),
           lambda run: {"lora_rank": run.lora_rank // 2} if run.trains_adapters and run.lora_rank > 1
           else "it needs adapters of rank 2 or more"),
    Switch("checkpointing", "", {"activation_checkpointing": "full"}),
    Switch("no-checkpointing", "", {"activation_checkpointing": "none"}),
    Switch("selective-checkpointing", "", {"activation_checkpointing": "selective"}),
    Switch("offloaded-checkpoints", "checkpoints lie on the host", {"activation_checkpointing": "offload"}),
    Switch("dora", "adapters learn magnitudes too: slower", {"adapter": "dora"}, lacks=_lacks_adapters),
    Switch("lora-fa", "half of each adapter trains", {"adapter": "lora_fa"}, lacks=_lacks_adapters),
    Switch("4bit-optimizer", "moments rounded to 4 bits; needs torchao", {"optimizer": "adamw_4bit"}),
    Switch("galore", "another optimizer: gradients projected to rank 128", {"optimizer": "galore_adamw"}),
    Switch("apollo", "another optimizer: gradients scaled by a random rank", {"optimizer": "apollo_adamw"}),
    Switch("muon", "another optimizer: updates made orthogonal by products", {"optimizer": "muon"}),
    Switch("8bit-optimizer", "moments rounded to 8 bits; needs bitsandbytes", {"optimizer": "adamw_8bit"}),
    Switch("paged-optimizer", "8-bit moments, paged; needs bitsandbytes", {"optimizer": "paged_adamw_8bit"}),
    Switch("adafactor", "another optimizer: factored second moments", {"optimizer": "adafactor"}),
    Switch("lion", "another optimizer: one moment, a smaller learning rate", {"optimizer": "lion"}),
    Switch("sgd", "another optimizer: no moments; seldom trains transformers well", {"optimizer": "sgd"}),
    Switch("fused-optimizer", "", {"optimizer_implementation": "fused"}),
    Switch("optimizer-in-backward", "no accumulation and no clipping over all gradients",
           {"optimizer_implementation": "in_backward"},
           lacks=lambda run: "" if run.gradient_accumulation_steps == 1 else
           "it updates after every micro-batch, so nothing accumulates; set gradient_accumulation_steps=1"),
    Switch("flash-attention", "needs flash-attn and an Ampere card or later", {"attention": "flash"}),
    Switch("sdpa", "", {"attention": "sdpa"}),
    Switch("eager-attention", "", {"attention": "eager"}),
    Switch("fused-loss", "needs a fused linear cross-entropy, as Liger's", {"loss": "fused"}),
    Switch("chunked-loss", "needs a loss in chunks (torchtune, TRL from 1.8 on)", {"loss": "chunked"}),
    _kernels("liger", "needs liger-kernel, which has no kernels for some models"),
    _kernels("unsloth", "needs Unsloth as the trainer"),
    Switch("compile", "the first steps compile; every new length may do so again", {"compile": True}),
    Switch("bf16", "weights round at every update: small learning rates may lose them",
           {"weights_dtype": "bf16", "autocast": "none"},
           lacks=lambda run: "" if run.weights_dtype in ("fp32", "fp16") else
           "the weights are 16 bits wide or fewer already"),
    Switch("autocast", "products and activations in bf16", {"autocast": "bf16"},
           lacks=lambda run: "" if (run.weights_dtype, run.autocast) == ("fp32", "none") else
           "it is for fp32 weights that compute in fp32"),
    Switch("fp16", "products and activations in fp16: needs loss scaling, for fp16 overflows",
           ("autocast", "weights_dtype"), _fp16),
    Switch("packing", "samples share rows: attention has to keep them apart", ("packing",), _packing),
    Switch("padding-free", "needs FlashAttention's variable lengths", {"padding": "free"},
           lacks=lambda run: NO_LENGTHS if run.dataset is None and run.mean_new_tokens is None else ""),
    Switch("smaller-engine", "", ("gpu_memory_utilization",), _smaller_engine),
    Switch("engine-sleeps", "needs vLLM's sleep levels", {"rollout_sleep": 2}, lacks=_lacks_engine),
    Switch("trainer-on-host", "weights and states wait on the host while an engine generates (verl, NeMo-RL)",
           {"rollout_offload": "all"}, lacks=_lacks_engine),
    Switch("double-micro-batch", "", ("micro_batch_size",), _double_micro_batch),
    Switch("bigger-micro-batch", "", ("micro_batch_size",), _bigger_micro_batch),
    Switch("half-micro-batch", "", ("micro_batch_size",), _half_micro_batch),
    Switch("smaller-micro-batch", "", ("micro_batch_size",), _smaller_micro_batch),
    Switch("shorter-sequences", "what is longer is cut off", ("seq_len",), _shorter_sequences),
    Switch("shorter-requests", "the engine takes no longer ones", ("max_model_len",), _shorter_requests),
    Switch("bigger-batch", "choose the learning rate again", (), _bigger_batch),
    _shards("none", "ddp"),
    _shards("zero1", breaks="needs DeepSpeed"),
    _shards("zero2", breaks="needs DeepSpeed"),
    _shards("zero3", breaks="needs DeepSpeed"),
    _shards("fsdp"),
    _shards("fsdp_shard_grad_op", "fsdp-keep-weights"),
    _shards("hybrid", "hybrid-shard"),
    Switch("sync-each-batch", "FSDP's gradients: more messages", {"sync_each_batch": True}),
    Switch("offload-optimizer", HOST_MEMORY, {"cpu_offload": "optimizer", "offload_pinned": True}),
    Switch("offload-all", HOST_MEMORY, {"cpu_offload": "all", "offload_pinned": True}),
    _degree("tensor_parallel", f"needs a framework that divides layers {MODEL_PARALLEL}"),
    _degree("pipeline_parallel", f"needs a framework that divides layers into stages {MODEL_PARALLEL}"),
    _degree("context_parallel", "needs ring attention (NeMo, torchtitan, Axolotl)"),
    Switch("expert-parallel", f"needs a framework that divides experts {MODEL_PARALLEL}",
           ("expert_parallel",),
           lambda run: {"expert_parallel": 2 * run.expert_parallel} if run.num_gpus > 1
           else "it needs more than one GPU"),
    Switch("logits-to-host", "an evaluation's, after every batch", {"eval_accumulation_steps": 1},
           lacks=lambda run: "" if run.eval_logits else "the run's evaluations keep no logits"),
    Switch("half-gpus", "", ("num_gpus",), _half_gpus),
    _more_gpus(2, "double-gpus"),
    _more_gpus(8, "8x-gpus"),
    Switch("model-experts", "other experts than asked for see each token", {"num_experts_per_tok": None},
           lacks=lambda run: "" if run.num_experts_per_tok is not None else
           "the run activates as many experts as the model says"),
    Switch("grouped-experts", "needs transformers 5", {"experts_implementation": "grouped_mm"},
           lacks=_lacks_experts),
    Switch("loop-experts", "", {"experts_implementation": "eager"}, lacks=_lacks_experts),
    Switch("fused-scan", "needs mamba-ssm and causal-conv1d", {"ssm_kernels": "fused"},
           lacks=lambda run: "" if _has_state_space(run) else "the model has no state-space layers"),
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


def requirements(run: Run, planned: Run) -> tuple[str, ...]:
    """Return what the switches that `planned` has and `run` has not ask for in return."""
    before, after, found = run.fields(), planned.fields(), list[str]()
    moved = {name for name, value in after.items() if value != before[name]}
    for switch in SWITCHES:
        if not switch.breaks or moved.isdisjoint(switch.fields):
            continue
        degree = switch.name.replace("-", "_")
        if degree in MODEL_DEGREES:
            has = after[degree] > before[degree]
        else:
            has = switch.change(planned) == ALREADY and switch.change(run) != ALREADY
        if has and not (switch.name == "lora" and run.trains_adapters):
            found.append(switch.breaks)
    return tuple(dict.fromkeys(found))


class Standing(NamedTuple):
    """A run, and what it takes."""

    run: Run
    outcome: Outcome
    samples_per_step: float  # of the data set, all GPUs together
    offer: Offer | None = None  # of a plan


class Variant(NamedTuple):
    """The run with one change."""

    switch: str
    changes: Changes  # fields with their new values; those that only follow from them included
    standing: Standing
    breaks: tuple[str, ...]  # what the change asks for in return


class Refused(NamedTuple):
    """A switch that changes nothing here, or that the run cannot have."""

    switch: str
    reason: str


class WhatIf(NamedTuple):
    """The run as it is, and with each change; the largest gain first."""

    base: Standing
    variants: tuple[Variant, ...]
    refused: tuple[Refused, ...]
    minimise: str
    spot: bool
    assumed_samples: int | None  # None where the run's own length is known

    def change_fraction(self, variant: Variant, objective: str) -> float | None:
        """Return by what share a change moves a figure: -0.2 is a fifth less; None if not known."""
        before = self.base.outcome.amount(objective, spot=self.spot)
        after = variant.standing.outcome.amount(objective, spot=self.spot)
        return None if before is None or after is None or not before else after / before - 1.0

    def gains(self, variant: Variant) -> bool:
        """Return whether a change saves anything that is worth a line."""
        changes = (self.change_fraction(variant, objective) for objective in OBJECTIVES)
        return any(change is not None and change <= -LEAST_GAIN_FRACTION for change in changes)


def what_if(
    run: Run,
    names: Sequence[str] = (),
    *,
    minimise: str = "cost",
    spot: bool = False,
    risk_fraction: float = RISKY_FROM_FRACTION,
) -> WhatIf:
    """Return what each change would do to `run`, which states its GPU.

    Args:
        run: The question.
        names: Switches, GPUs, or "field=value"; every switch and a few GPUs where none is named.
        minimise: The figure to sort by: cost, time, energy or memory.
        spot: Whether cost means spot prices.
        risk_fraction: The probability of running out of memory from which a run counts as failing.

    Raises: UnknownNameError for a name that is neither a switch nor a GPU.
    """
    switches = [switch_of(name) for name in names] or [*SWITCHES, *map(switch_of, OTHER_GPUS)]
    sized, assumed = with_known_length(run)
    base = standing(sized)
    tried = [tried_with(switch, base) for switch in switches]
    refused = tuple(one for one in tried if isinstance(one, Refused))
    whole = WhatIf(base, (), refused, minimise, spot, assumed)

    def place(variant: Variant) -> tuple[bool, float]:
        change = whole.change_fraction(variant, minimise)
        fails = variant.standing.outcome.out_of_memory_fraction >= risk_fraction
        return fails, change if change is not None else inf

    variants = sorted((one for one in tried if isinstance(one, Variant)), key=place)
    return whole._replace(variants=tuple(variants))


def with_known_length(run: Run) -> tuple[Run, int | None]:
    """Return `run` with a number of samples, and that number where it had to be assumed."""
    if shape(run).steps_total is not None:
        return run, None
    return run.replace(origin="assumed to compare", num_samples=ASSUMED_SAMPLES), ASSUMED_SAMPLES


def samples_per_step(run: Run) -> float:
    """Return the samples of the data set in one optimizer step of `run`, all GPUs together."""
    return run.gradient_accumulation_steps * run.data_parallel * shape(run).samples


def standing(run: Run, estimator: Estimator | None = None, profile: Profile | None = None) -> Standing:
    """Return what `run`, whose length is known, takes; `profile`: its step, where it is known already."""
    from finegauge.prediction.predictor import predict

    profile = profile or (estimator or predict)(run)
    bill, chance = quote(run, profile), probability_out_of_memory(profile)
    found = Outcome(
        verdict(chance), profile.device_memory_bytes.total, profile.capacity_bytes, chance,
        profile.step_time_s.total, bill.wall_s or 0.0, bill.on_demand_usd, bill.spot_usd, bill.wall_energy_j,
        bill.emissions_kg,
    )  # fmt: skip
    return Standing(run, found, samples_per_step(run))


def switch_of(name: str) -> Switch:
    """Return the switch called `name`: one of the table, a field with its value, or a GPU.

    Raises: UnknownKeyError for a field, UnknownNameError for anything else that there is not.
    """
    if "=" in name:
        text = name.strip()
        field, _, value = text.partition("=")
        if field not in FIELDS:
            raise UnknownKeyError("whatif", field, known=FIELDS)
        return Switch(text, "", {field: FIELDS[field](field, parse_yaml(value, field))})
    named = switch_named(name)
    if named is not None:
        return named
    try:
        found = name if is_file(name) and gpu(name) else gpu(name).name
    except InputError:
        known = [*known_switches(), *gpus()]
        raise UnknownNameError("switch", name, known=known, listing="finegauge whatif --list") from None
    return Switch(found, "", {"gpu": found})


def tried_with(switch: Switch, base: Standing, estimator: Estimator | None = None) -> Variant | Refused:
    """Return what becomes of the run of `base` with one change, or why it cannot have it."""
    run = base.run
    try:
        changes = switch.change(run)
        if isinstance(changes, str):
            return Refused(switch.name, changes)
        changed = _as_long(run, run.replace(origin="whatif", **changes), base)
        found = standing(changed, estimator)
    except (FieldError, UnsupportedError) as error:
        return Refused(switch.name, str(error))
    if changed == run:
        return Refused(switch.name, ALREADY)
    breaks = [switch.breaks] if switch.breaks else []
    before, after = base.samples_per_step, found.samples_per_step
    if abs(after / before - 1.0) > LEAST_GAIN_FRACTION:
        breaks.append(f"a step has {after:,.0f} samples, not {before:,.0f}")
    own, idle = run.fields(), () if changed.trains_adapters else LORA_FIELDS  # which mean nothing to it
    led = {name: value for name, value in changed.fields().items() if value != own[name] and name not in idle}
    return Variant(switch.name, led, found, tuple(breaks))


def _as_long(run: Run, changed: Run, base: Standing) -> Run:
    if run.max_steps is None or changed.max_steps != run.max_steps:
        return changed
    steps = max(1, round(run.max_steps * base.samples_per_step / samples_per_step(changed)))
    return changed if steps == run.max_steps else changed.replace(origin="whatif", max_steps=steps)
