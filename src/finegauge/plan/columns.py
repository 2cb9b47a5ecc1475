"""The plans that a search has evaluated, as columns: one number per plan and figure, nan where unknown.

A plan is a layout, a micro-batch and an offer; what the layouts say of it (method, sharding, ...) is
looked up when somebody asks, not copied for every plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.catalogue.offers import Offer
from finegauge.plan.structures import Layout, Structure

FIGURES = (
    *("step_time_s", "wall_s", "usd", "spot_usd", "energy_j", "emissions_kg"),
    *("memory_bytes", "capacity_bytes", "out_of_memory_fraction"),
)
PLACES = ("layout", "micro_batch_size", "offer", "num_nodes")
OF_LAYOUT = (
    *("method", "num_gpus", "sharding", "cpu_offload", "optimizer", "packing", "activation_checkpointing"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "data_parallel"),
)


class Laid(NamedTuple):
    """A layout of a structure, some of whose plans have been evaluated."""

    structure: Structure
    layout: Layout


class Columns(Mapping[str, Any]):
    """Figures by name, each an array with one number per plan."""

    def __init__(self) -> None:
        """Start without plans."""
        self.laid: list[Laid] = []
        self._chunks: list[dict[str, Any]] = []
        self._whole: dict[str, Any] = {}

    def add(self, laid: Sequence[Laid], columns: Mapping[str, Any]) -> None:
        """Add plans of some layouts, which `columns["layout"]` counts from the number of those before."""
        self.laid += laid
        self._chunks.append(dict(columns))

    def __getitem__(self, name: str) -> Any:
        """Return one column."""
        import numpy

        if name == "samples_per_step":
            of_layout = [laid.structure.batching.samples_per_step for laid in self.laid]
            return numpy.array(of_layout)[self["layout"]]
        if name not in self._whole:
            if name not in (*FIGURES, *PLACES):
                raise KeyError(name)
            found = [chunk.pop(name) for chunk in self._chunks]
            self._whole[name] = numpy.concatenate(found) if found else numpy.empty(0, dtype=int)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all columns."""
        return iter((*FIGURES, *PLACES, "samples_per_step"))

    def __len__(self) -> int:
        """Return how many columns there are."""
        return len(FIGURES) + len(PLACES) + 1


class Labels(Mapping[str, Any]):
    """What plans differ in, by name: the values, and for each plan which of them it has."""

    def __init__(self, columns: Columns, offers: Sequence[Offer]) -> None:
        """Look up in `columns`, whose offers are places in `offers`."""
        self.columns, self.offers = columns, offers
        self._known: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def __getitem__(self, name: str) -> tuple[tuple[Any, ...], Any]:
        """Return (values, codes)."""
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter((*OF_LAYOUT, "gpu", "provider", "micro_batch_size", "num_nodes"))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(OF_LAYOUT) + 4

    def _found(self, name: str) -> tuple[tuple[Any, ...], Any]:
        import numpy

        if name in ("micro_batch_size", "num_nodes"):
            values, codes = numpy.unique(self.columns[name], return_inverse=True)
            return tuple(int(value) for value in values), codes
        if name in ("gpu", "provider"):
            of_each = [getattr(offer, name) for offer in self.offers]
            place = self.columns["offer"]
        elif name in OF_LAYOUT:
            of_each = [getattr(laid.layout.run, name) for laid in self.columns.laid]
            place = self.columns["layout"]
        else:
            raise KeyError(name)
        known = tuple(dict.fromkeys(of_each))
        codes = numpy.array([known.index(value) for value in of_each], dtype=numpy.intp)
        return known, codes[place] if len(codes) else codes
