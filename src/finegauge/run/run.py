"""The question: one fine-tuning run, complete, every field with its origin.

A run file is YAML whose keys are the fields of `Run`, which `fields` lists; `rules` says what follows from
fields together.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import gpu
from finegauge.errors import FieldError, UnknownKeyError
from finegauge.run import fields, rules

if TYPE_CHECKING:
    from finegauge.catalogue.models import ModelFigures

FIELDS = fields.FIELDS
FROM_FILE, FROM_COMMAND_LINE, FROM_CALLER = rules.STATED
FROM_DEFAULT = "FineGauge default"
FROM_THIS_MACHINE = "this machine"
FROM_MODEL_ALONE = "default of a model alone"  # which names no training
FROM_MODEL_TOO_LARGE = f"{FROM_MODEL_ALONE}: LoRA does not fit"
FROM_COPY_TOO_LARGE = f"{FROM_MODEL_ALONE}: a copy on each GPU does not fit"
REQUIRED = ("model", "method")  # a config.json alone states no method; its reader says full
NEED_THE_MODEL = (
    *("num_experts_per_tok", "tensor_parallel", "pipeline_parallel", "virtual_pipeline_stages"),
    *("expert_parallel", "expert_capacity_factor"),
)
FREE = frozenset(("micro_batch_size", "provider", "region"))  # no rule reads them: nothing follows from them


class Run(fields.Fields):
    """One fine-tuning run on one cluster; frozen, validated, with the origin of every field."""

    origins: Mapping[str, str] = {}  # of each field; these two are not compared
    warnings: tuple[str, ...] = ()

    def _settle(
        self, *, origins: Mapping[str, str] = {}, warnings: tuple[str, ...] = (), **stated: Any
    ) -> None:
        """Check every field, fill in what follows from the others, and note the origins."""
        if not stated.keys() <= FIELDS.keys():
            raise TypeError(f"A run has no {', '.join(sorted(stated.keys() - FIELDS.keys()))}.")
        values, origins = {}, dict(origins)
        for name, each in FIELDS.items():
            default = each.default
            value = stated.get(name, default)
            if value is None or (type(value) is type(default) and value == default):
                values[name] = default
                origins.setdefault(name, FROM_DEFAULT)
            else:
                origins.setdefault(name, FROM_DEFAULT if value == default else FROM_CALLER)
                values[name] = each(name, value)
        for name in REQUIRED:
            if values[name] is None:
                raise FieldError(
                    f"The run does not state its {name}; add '{name}: …' to the file "
                    f"or {name}=… to the command line."
                )
        rules.settle(values, origins)
        asked = (values[name] not in (None, 1) for name in NEED_THE_MODEL)
        if values["reduce_bucket_size"] == "auto" or any(asked):
            rules.fit_model(values, figures(values["model"]).config)
        self.__dict__.update(values, origins=origins, warnings=warnings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and _values_of(self) == _values_of(other)

    def __hash__(self) -> int:
        return hash(_values_of(self))

    def __repr__(self) -> str:
        """Return the stated fields as the call that makes an equal run."""
        return f"Run({', '.join(f'{name}={value!r}' for name, value in self.stated_fields().items())})"

    @classmethod
    def from_fields(
        cls,
        values: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> "Run":
        """Return the run that `values` state; fields without an origin count as from the file."""
        known = {}
        for name, value in values.items():
            if name not in FIELDS:
                raise UnknownKeyError("run", name, known=FIELDS)
            if value is not None:
                known[name] = FROM_FILE
        return cls(**values, origins={**known, **(origins or {})}, warnings=warnings)

    @property
    def global_batch_size(self) -> int:
        """Return the sequences of one optimizer step, all GPUs together."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel

    @property
    def all_gpus(self) -> int:
        """Return the GPUs that train, and those that only generate."""
        return self.num_gpus + self.rollout_gpus

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
        rules.fit_model(self.fields(), self.config)
        if self.gpu is not None:
            gpu(self.gpu)
        if self.dataset is not None:
            from finegauge.catalogue.datasets import dataset, is_of_texts

            if not is_of_texts(self.dataset, self.tokenizer):
                dataset(self.dataset)

    def fields(self) -> dict[str, Any]:
        """Return every field by name, in the order of the class."""
        return dict(zip(FIELDS, _values_of(self), strict=True))

    def stated_fields(self) -> dict[str, Any]:
        """Return the stated fields, and those that every run has to state."""
        values = self.fields()
        for name, origin in self.origins.items():
            if origin == FROM_DEFAULT and name not in REQUIRED:
                del values[name]
        return values

    def replace(self, origin: str = FROM_CALLER, **changes: Any) -> "Run":
        """Return the same run with `changes`, checked anew; `origin` says who changed them.

        What FineGauge had filled in follows the new values, and a new method drops what
        only the old one needed.
        """
        if changes.keys() <= FREE:
            return self._with_free(origin, changes)
        values = self.stated_fields()
        if "method" in changes and FIELDS["method"]("method", changes["method"]) != self.method:
            rules.forget_method(values, changes["method"])
        if not str(changes.get("optimizer", self.optimizer)).startswith(rules.PROJECTING):
            values.pop("optimizer_rank", None)
        if self.optimizer in rules.LOMO and "optimizer" in changes:
            values.pop("optimizer_implementation", None)
        if "adapter" in changes and FIELDS["adapter"]("adapter", changes["adapter"]) != self.adapter:
            for name in (*rules.unused_by(FIELDS["adapter"]("adapter", changes["adapter"])), "adapter_size"):
                values.pop(name, None)
        if changes.get("packing") and self.padding == "longest":
            values.pop("padding", None)  # which full sequences rule out
        if "gpu" in changes and self.origins["free_memory_bytes"] == FROM_THIS_MACHINE:
            values.pop("free_memory_bytes", None)  # of another GPU
        origins = dict(zip(values, map(self.origins.__getitem__, values), strict=True))
        return Run.from_fields(values | changes, origins | dict.fromkeys(changes, origin), self.warnings)

    def _with_free(self, origin: str, changes: Mapping[str, Any]) -> "Run":
        """Return the same run with changes of `FREE` fields, which settle nothing anew."""
        origins = {name: said for name, said in self.origins.items() if said != FROM_DEFAULT}
        origins |= dict.fromkeys(changes, origin)
        values = {n: FIELDS[n].default if v is None else FIELDS[n](n, v) for n, v in changes.items()}
        found = object.__new__(Run)
        found.__dict__.update(self.__dict__, **values, origins={**origins, **_DEFAULTS, **origins})
        return found

    def to_yaml(self) -> str:
        """Return a run file that reads back as an equal run."""
        import yaml

        stated = {n: list(v) if isinstance(v, tuple) else v for n, v in self.stated_fields().items()}
        return str(yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=100))


_values_of = attrgetter(*FIELDS)
_DEFAULTS = dict.fromkeys(FIELDS, FROM_DEFAULT)


AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")  # first position: behind the padding's


def field_of_choice(word: str, names: Iterable[str]) -> str:
    """Return the first of these fields that has a choice called so; "" for none."""
    return next((name for name in names if word in {**FIELDS[name].options, **FIELDS[name].aliases}), "")


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that a model's config was written for; None where it does not say."""
    rows = config.get("max_position_embeddings", config.get("n_positions"))
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        return None
    padding = config.get("pad_token_id")
    return rows - (1 + (1 if padding is None else padding)) * (config.get("model_type") in AFTER_PADDING)


def figures(name_or_path: str) -> "ModelFigures":
    """Return the model's row of the catalogue, or its file's figures."""
    from finegauge.catalogue.models import model as find

    return find(name_or_path)
