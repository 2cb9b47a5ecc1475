"""The question: one fine-tuning run, complete, every field with its origin.

A run file is YAML whose keys are the field names below. `docs/run-file.md` says what each
means; the topic modules beside this one say which values it accepts and what it follows
from when it is not stated.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any

from finegauge.data import batch_shape
from finegauge.errors import FieldError, UnknownKeyError
from finegauge.run import rules
from finegauge.run.field import UNSTATED, Check, text, whole

if TYPE_CHECKING:
    from finegauge.catalogue.models import ModelFigures

FROM_FILE = "file"
FROM_COMMAND_LINE = "command line"
FROM_CALLER = "caller"
FROM_DEFAULT = "FineGauge default"
REQUIRED = ("model", "method")  # a config.json alone states no method; its reader says full
STATED = (FROM_FILE, FROM_COMMAND_LINE, FROM_CALLER)
NEED_THE_MODEL = (
    *("num_experts_per_tok", "tensor_parallel", "pipeline_parallel", "virtual_pipeline_stages"),
    "expert_parallel",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One fine-tuning run on one cluster; frozen, validated, with the origin of every field."""

    model: str  # catalogue name, Hugging Face id, config.json or a folder that holds one
    method: str
    phase: str = "sft"
    num_experts_per_tok: int | None = None  # None: as the model says; all of them is dense fine-tuning
    lora_rank: int = UNSTATED
    lora_alpha: float = UNSTATED
    lora_dropout: float = UNSTATED
    lora_targets: tuple[str, ...] = UNSTATED
    trainable_extra: tuple[str, ...] = ()
    freeze_trainable_layers: int | None = None
    weights_dtype: str = UNSTATED
    autocast: str = "none"
    adapter_dtype: str = UNSTATED
    upcast_unquantized: bool = False
    fp8: bool = False  # products of the layers' linears in fp8, weights and activations as they are
    quantize_experts: bool = UNSTATED
    optimizer: str = "adamw"
    optimizer_implementation: str = UNSTATED
    activation_checkpointing: str = "none"
    checkpointing_reentrant: bool = True
    synchronous: bool = False
    attention: str = "sdpa"
    kernels: tuple[str, ...] = ()
    loss: str = UNSTATED
    experts_implementation: str = UNSTATED
    ssm_kernels: str = "fused"
    compile: bool = False
    dataset: str | None = None
    num_samples: int | None = None
    seq_len: int = 2048  # cut-off; with no dataset, the length of every sequence
    over_length: str = "truncate"  # what becomes of a sample longer than seq_len
    packing: bool = False
    packing_strategy: str = UNSTATED
    padding: str = UNSTATED
    pad_to_multiple_of: int = 8
    group_by_length: bool = False
    validation_fraction: float = 0.0  # of num_samples, held out of training
    tokenizer: str | None = None  # folder or tokenizer.json that turns a data set of texts into tokens
    max_new_tokens: int = UNSTATED  # that ppo, grpo and decode write; the rest of seq_len is the prompt
    num_generations: int = 8  # answers per prompt that grpo compares
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    epochs: float = 1.0
    max_steps: int | None = None
    gpu: str | None = None
    num_gpus: int = UNSTATED  # of all nodes together
    num_nodes: int = 1
    node_network_gbit_per_s: float | None = None  # all network cards of a node, one direction
    data_parallel_replicate: int = UNSTATED
    data_parallel_shard: int = UNSTATED
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_schedule: str = "1f1b"
    virtual_pipeline_stages: int = 1  # chunks of layers per stage: interleaved 1F1B
    sequence_parallel: bool = False  # tensor-parallel ranks divide norms and residual streams too
    context_parallel: int = 1
    expert_parallel: int = 1
    sharding: str = "none"
    cpu_offload: str = "none"
    provider: str | None = None
    region: str | None = None
    startup_s: float = 180.0  # process start, loading, tokenising
    saves_per_epoch: float = 1.0
    eval_samples: int = 0
    framework: str = ""
    framework_version: str = ""
    transformers_version: str = "5.23"
    bitsandbytes_version: str = "0.50"
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check every field, fill in what follows from the others, and note the origins."""
        values, origins = {}, dict(self.origins)
        for name, check in CHECKS.items():
            value, default = getattr(self, name), DEFAULTS[name]
            origin = FROM_DEFAULT if value is None or value == default else FROM_CALLER
            origins.setdefault(name, origin)
            value = default if value is None else value
            values[name] = None if value is None else check(name, value)
        if values["model"] is None or values["method"] is None:
            missing = "model" if values["model"] is None else "method"
            raise FieldError(
                f"The run does not state its {missing}; add '{missing}: …' to the file "
                f"or {missing}=… to the command line."
            )
        stated = {name for name, origin in origins.items() if origin in STATED}
        rules.settle_implementation(values, stated)
        rules.settle_method(values, stated)
        rules.settle_precision(values, stated)
        batch_shape.settle_data(values, stated)
        batch_shape.settle_phase(values, stated)
        rules.settle_parallelism(values, stated)
        if any(values[name] not in (None, 1) for name in NEED_THE_MODEL):
            rules.fit(values, figures(values["model"]).config)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "origins", origins)

    def __repr__(self) -> str:
        """Return the stated fields as the call that makes an equal run."""
        return f"Run({', '.join(f'{name}={value!r}' for name, value in self.stated_fields().items())})"

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> "Run":
        """Return the run that `fields` state; fields without an origin count as from the file."""
        for name in fields:
            if name not in CHECKS:
                raise UnknownKeyError("run", name, known=CHECKS)
        known = dict.fromkeys((n for n, v in fields.items() if v is not None), FROM_FILE) | dict(
            origins or {}
        )
        return cls(**{"model": UNSTATED, "method": UNSTATED, **fields}, origins=known, warnings=warnings)

    @property
    def global_batch_size(self) -> int:
        """Return the sequences of one optimizer step, all GPUs together."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel

    @property
    def data_parallel(self) -> int:
        """Return how many ranks read different sequences."""
        return self.data_parallel_replicate * self.data_parallel_shard

    @property
    def trains_adapters(self) -> bool:
        """Return whether low-rank adapters train beside frozen weights."""
        return self.method in rules.ADAPTER_METHODS

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the model's figures under Hugging Face's field names."""
        return figures(self.model).config

    def check_names(self) -> None:
        """Raise where the model, GPU or data set is unknown, or the model cannot be run as asked."""
        rules.fit(self.fields(), self.config)
        if self.gpu is not None:
            from finegauge.catalogue.gpus import gpu

            gpu(self.gpu)
        if self.dataset is not None:
            batch_shape.dataset_of(self)

    def fields(self) -> dict[str, Any]:
        """Return every field by name, in the order of the class."""
        return {name: getattr(self, name) for name in CHECKS}

    def stated_fields(self) -> dict[str, Any]:
        """Return the fields that somebody stated, and those that every run has to state."""
        return {n: getattr(self, n) for n in CHECKS if n in REQUIRED or self.origins[n] != FROM_DEFAULT}

    def replace(self, origin: str = FROM_CALLER, **changes: Any) -> "Run":
        """Return the same run with `changes`, checked anew; `origin` says who changed them.

        What FineGauge had filled in follows the new values, and a new method drops what
        only the old one needed.
        """
        values = self.stated_fields()
        if "method" in changes and rules.METHOD_CHECKS["method"]("method", changes["method"]) != self.method:
            rules.forget(values, changes["method"])
        if changes.get("packing") and self.padding == "longest":
            values.pop("padding", None)  # which full sequences rule out
        values.update(changes)
        origins = {name: self.origins[name] for name in values if name in CHECKS}
        origins.update(dict.fromkeys(changes, origin))
        return Run.from_fields(values, origins, self.warnings)

    def to_yaml(self) -> str:
        """Return a run file that reads back as an equal run."""
        import yaml

        stated = {n: list(v) if isinstance(v, tuple) else v for n, v in self.stated_fields().items()}
        return str(yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=100))


def figures(name_or_path: str) -> "ModelFigures":
    """Return the model's row of the catalogue, or its file's figures."""
    from finegauge.catalogue.models import model as find

    return find(name_or_path)


def _experts(name: str, value: Any) -> int | str:
    """Return a number of experts, or the word all."""
    return (
        "all"
        if isinstance(value, str) and value.strip().lower() == "all"
        else int(whole(1, 100_000)(name, value))
    )


CHECKS: dict[str, Check] = {
    "model": text,
    "num_experts_per_tok": _experts,
    **rules.METHOD_CHECKS,
    **rules.PRECISION_CHECKS,
    **rules.IMPLEMENTATION_CHECKS,
    **batch_shape.DATA_CHECKS,
    **rules.PARALLELISM_CHECKS,
    **rules.CLUSTER_CHECKS,
}
CHECKS = {name: CHECKS[name] for name in Run.__dataclass_fields__ if name in CHECKS}
DEFAULTS: dict[str, Any] = {
    name: None if declared.default is MISSING else declared.default
    for name, declared in Run.__dataclass_fields__.items()
    if name in CHECKS
}
