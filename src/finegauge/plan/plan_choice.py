"""Which of the plans that a search found to take: the limits as masks over its columns.

The best is the smallest in the figure to be minimised. Of those within three percent of it the fastest
count (the cheapest, where time or energy is minimised), and of these the one is taken that changes least
of the run as it is: nobody rewrites a config for half a percent.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finegauge.plan.search import Candidate, Limits
    from finegauge.workload.run import Run

EQUAL_FRACTION = 0.03  # plans closer than this are as good as each other: no prediction is so exact
ALIKE_FRACTION = 0.1  # and of those, in hours (of the fastest, in dollars), these
FREE_TO_CHANGE = ("gpu", "provider", "num_gpus", "num_nodes", "micro_batch_size")  # no edit of the recipe


class Found(Protocol):
    """What a search hands over: figures and labels of every plan, and each plan when asked."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Return arrays by figure, one number per plan; nan where it is not known."""

    @property
    def labels(self) -> Mapping[str, tuple[tuple[Any, ...], Any]]:
        """Return by field of the run its values, and for each plan which of them it has."""

    @property
    def num_candidates(self) -> int:
        """Return how many plans there are."""

    @property
    def num_evaluated(self) -> int:
        """Return how many of them were evaluated in full."""

    def candidate(self, index: int) -> "Candidate":
        """Return one plan."""


class Choice(NamedTuple):
    """What a search found, what is asked of it, and the run that it started from."""

    run: "Run"
    result: Found
    limits: "Limits"
    minimise: str
    spot: bool
    workable: "NDArray[np.bool_]"  # which plans somebody would carry out: see `plan_sense`
    sensible: "NDArray[np.bool_]"  # and of these, which train what was asked for, or less

    @classmethod
    def of(cls, run: "Run", result: Found, limits: "Limits", minimise: str, *, spot: bool) -> "Choice":
        """Return the choice among all that was found."""
        from finegauge.plan.plan_sense import same_training, workable

        works = workable(run, result)
        return cls(run, result, limits, minimise, spot, works, works & same_training(run, result))

    def column(self, name: str) -> "NDArray[np.float64]":
        """Return one figure of every plan; of cost the market that is asked for."""
        if name == "cost":
            name = "spot_usd" if self.spot else "usd"
        names = {"time": "wall_s", "energy": "energy_j"}
        values: NDArray[np.float64] = self.result.columns[names.get(name, name)]
        return values

    def fits(self, threshold: float | None = None) -> "NDArray[np.bool_]":
        """Return which plans run out of memory with less than the allowed probability."""
        allowed = self.limits.out_of_memory_fraction if threshold is None else threshold
        mask: NDArray[np.bool_] = self.column("out_of_memory_fraction") < allowed
        return mask

    def in_time(self, within_s: float | None) -> "NDArray[np.bool_]":
        """Return which plans end within so many seconds."""
        import numpy as np

        return self.column("time") <= (np.inf if within_s is None else within_s)

    def in_budget(self, budget_usd: float | None) -> "NDArray[np.bool_]":
        """Return which plans have a known price, within so many dollars."""
        import numpy as np

        return self.column("cost") <= (np.inf if budget_usd is None else budget_usd)  # False where it is nan

    def keeps_limits(self) -> "NDArray[np.bool_]":
        """Return which plans keep every limit."""
        limits = self.limits
        return self.fits() & self.in_time(limits.within_s) & self.in_budget(limits.budget_usd)

    def allowed(self) -> "NDArray[np.bool_]":
        """Return which plans may be taken."""
        return self.sensible & self.keeps_limits()

    def best(self, mask: "NDArray[np.bool_]", figure: str = "") -> int | None:
        """Return the plan of `mask` that is smallest in `figure`; None where it is empty.

        Args:
            mask: Which plans to look at.
            figure: cost, time or energy; the one to be minimised by default.
        """
        import numpy as np

        values = self.column(figure or self.minimise)
        rows = np.flatnonzero(mask & np.isfinite(values))
        if not len(rows):
            return None
        near = rows[values[rows] <= values[rows].min() * (1.0 + EQUAL_FRACTION)]
        beside = self.column("time" if (figure or self.minimise) == "cost" else "cost")
        beside = np.where(np.isnan(beside), np.inf, beside)
        near = near[beside[near] <= beside[near].min() * (1.0 + ALIKE_FRACTION)]
        ranked = np.lexsort((values[near], self._edits(near)))
        return int(near[ranked[0]])

    def _edits(self, rows: "NDArray[np.intp]") -> "NDArray[np.intp]":
        """Return how many settings each of `rows` changes of the run as it is."""
        import numpy as np

        edits = np.zeros(len(rows), dtype=np.intp)
        for name, (values, codes) in self.result.labels.items():
            if name in FREE_TO_CHANGE:
                continue
            own = getattr(self.run, name, None)
            changed = np.array([value != own for value in values], dtype=bool)
            edits += changed[codes[rows]]
        return edits
