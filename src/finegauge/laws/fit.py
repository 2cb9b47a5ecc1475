r"""Fit the constants of an equation to a sweep.

Two ways, both least squares:

ROBUST         minimises $\sum \rho(r)$ of the relative residuals $r = law / measured - 1$, where
               $\rho$ (soft L1) turns from square to linear at 5 %. Relative, because a step of
               0.3 s and one of 7 s are timed equally well in percent; robust, because sweeps hold
               points that a neighbouring job or a copying error spoiled.
LEAST_SQUARES  minimises the squares of $law - measured$, as the seed paper's artifact does; no other
               constants of that equation have a smaller RMSE.

The 95 % intervals are Student's t times the root of the diagonal of $s^2 (J^T J)^{-1}$ at the
optimum [1]; they trust the equation. The extrapolation test does not: it fits the smaller half of
the sweep and predicts the larger. Both are deterministic.

[1] Seber and Wild, Nonlinear Regression, 2003, section 5.1
"""

import os
from collections.abc import Callable, Mapping, Sequence
from math import exp, isfinite, log, sqrt
from typing import Any, NamedTuple

from finegauge.catalogue.gpus import known_gpu
from finegauge.documents import MAX_DOCUMENT_BYTES, parse_csv, read_text
from finegauge.errors import FieldError, FileFormatError, InputError, UnsupportedError, did_you_mean, shown
from finegauge.laws.law import MAX_BATCH, Condition, Form, Law, Observation, Scores, Sweep
from finegauge.profile import Interval
from finegauge.units import GB, counted

TURN_FRACTION = 0.05
BETWEEN_WHOLE_BATCHES = 0.5  # a largest batch of 8 was cut down from 8 to 9: its middle is fitted


class Objective(NamedTuple):
    """A loss function."""

    relative: bool
    loss: str  # as scipy.optimize.least_squares names it


ROBUST = Objective(relative=True, loss="soft_l1")
LEAST_SQUARES = Objective(relative=False, loss="linear")


def fit(
    equation: Form,
    sweep: Sweep,
    *,
    objective: Objective = ROBUST,
    held: Mapping[str, float] | None = None,
    **about: Any,
) -> Law:
    """Return the law that `equation` becomes on `sweep`, with its errors and their test.

    `held` are constants to set by hand, beside those the sweep cannot tell; `about` are the law's `name`,
    `table`, `context` and `fitted`.

    Raises: InputError if there are fewer points than constants.
    """
    fixed = {**equation.held(sweep), **(held or {})} if sweep else {}
    free = [name for name in equation.units if name not in fixed]
    if len(sweep) < len(free):
        raise InputError(
            f"{equation.name} has {len(free)} constants to fit ({', '.join(free)}), but the table gives "
            f"{counted(len(sweep), 'point')}; measure more batch sizes."
        )
    found = _minimum(equation, sweep, free, fixed, objective)
    constants = {name: {**fixed, **found.constants}[name] for name in equation.units}
    tested, border = _extrapolation(equation, sweep, len(free), objective, fixed)
    batches = [seen.condition.batch for seen in sweep]
    return Law(
        **{"name": equation.name, **about},
        form_name=equation.name,
        constants=constants,
        half_widths=found.half_widths,
        held=tuple(name for name in equation.units if name in fixed),
        scores=scores(equation, constants, sweep),
        extrapolation=tested,
        smaller_half=border,
        interval=_interval(equation, constants, sweep, len(sweep) - len(free)),
        batch_range=(min(batches), max(batches)),
    )


def scores(equation: Form, constants: Mapping[str, float], sweep: Sweep) -> Scores:
    """Return how far the equation with `constants` is from the points of `sweep`."""
    said = [equation.answer(constants, seen.condition) for seen in sweep]
    squares = sum((one - seen.value) ** 2 for one, seen in zip(said, sweep, strict=True))
    shares = sum(abs(one / seen.value - 1) for one, seen in zip(said, sweep, strict=True))
    return Scores(len(sweep), sqrt(squares / len(sweep)), shares / len(sweep))


class _Minimum(NamedTuple):
    constants: dict[str, float]
    half_widths: dict[str, float]


def _minimum(
    equation: Form, sweep: Sweep, free: list[str], fixed: Mapping[str, float], objective: Objective
) -> _Minimum:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise UnsupportedError(
            "Fitting a law needs scipy: pip install 'finegauge[calibrate]'. Predicting works without it."
        ) from None
    shift = BETWEEN_WHOLE_BATCHES if equation.quantity == MAX_BATCH else 0.0
    targets = [seen.value + shift for seen in sweep]

    def residuals(values: Any) -> list[float]:
        constants = {**fixed, **dict(zip(free, map(float, values), strict=True))}
        said = [equation.evaluate(constants, seen.condition) for seen in sweep]
        apart = zip(said, targets, strict=True)
        return [one / seen - 1 if objective.relative else one - seen for one, seen in apart]

    start = equation.start(sweep)
    solution = least_squares(
        residuals,
        [start[name] for name in free],
        bounds=tuple(zip(*(equation.limits[name] for name in free), strict=True)),
        loss=objective.loss,
        f_scale=TURN_FRACTION if objective.relative else 1.0,
        x_scale=[abs(start[name]) or 1.0 for name in free],
        ftol=1e-12, xtol=1e-12, gtol=1e-12, max_nfev=2000,
    )  # fmt: skip
    if not solution.success:
        raise UnsupportedError(f"{equation.name} does not settle on these points: {solution.message}")
    constants = dict(zip(free, map(float, solution.x), strict=True))
    return _Minimum(constants, _half_widths(solution, free, len(sweep)))


def _half_widths(solution: Any, free: list[str], num_points: int) -> dict[str, float]:
    """Return half the width of each constant's 95 % interval; none where the data leave it open."""
    import numpy as np
    from scipy.special import stdtrit

    spare = num_points - len(free)
    if spare < 1 or np.linalg.matrix_rank(solution.jac) < len(free):
        return {}
    variance = 2.0 * solution.cost / spare
    spread = np.linalg.inv(solution.jac.T @ solution.jac).diagonal() * variance
    widths = [float(stdtrit(spare, 0.975)) * sqrt(max(0.0, value)) for value in map(float, spread)]
    return dict(zip(free, widths, strict=True))


def _extrapolation(
    equation: Form, sweep: Sweep, num_free: int, objective: Objective, fixed: Mapping[str, float]
) -> tuple[Scores | None, str]:
    """Return the errors on the larger half of a law fitted to the smaller, and what the smaller is."""
    sizes = sorted(equation.size(seen.condition) for seen in sweep)
    border = sizes[(len(sizes) - 1) // 2]
    small = [seen for seen in sweep if equation.size(seen.condition) <= border]
    large = [seen for seen in sweep if equation.size(seen.condition) > border]
    if not large or len(small) < num_free or len({equation.size(seen.condition) for seen in small}) < 2:
        return None, ""
    within = {**fixed, **equation.held(small)}
    free = [name for name in equation.units if name not in within]
    found = _minimum(equation, small, free, within, objective)
    most = f"GPU <= {border / GB:g} GB" if equation.quantity == MAX_BATCH else f"batch <= {border:g}"
    return scores(equation, {**within, **found.constants}, large), most


def _interval(equation: Form, constants: Mapping[str, float], sweep: Sweep, spare: int) -> Interval | None:
    """Return the 10th and 90th percentile of measured / law for a new point, by Student's t on logarithms."""
    from scipy.special import stdtrit

    said = [equation.evaluate(constants, seen.condition) for seen in sweep]
    if spare < 1 or min(said) <= 0:
        return None
    squares = sum(log(seen.value / one) ** 2 for one, seen in zip(said, sweep, strict=True))
    spread = sqrt(squares / spare * (1 + 1 / len(sweep)))
    width = float(stdtrit(spare, 0.9)) * spread
    return Interval(exp(-width), exp(width)) if isfinite(width) and width < log(100) else None


ALIASES: Mapping[str, tuple[str, ...]] = {
    "batch": ("batch_size", "micro_batch_size", "micro_batch"),
    "sparsity": ("sparsity_ratio", "sparsity_fraction"),
    "samples_per_s": ("queries_per_s", "throughput_qps", "samples_per_second"),
    "step_time_s": ("seconds_per_step",),
    "tokens_per_s_per_gpu": ("tokens_per_s",),
    "max_batch": ("max_batch_size", "observed_max_batch", "max_micro_batch_size"),
    "gpu_memory_gb": ("gpu_mem_gb",),
    "model_memory_gb": ("model_mem_gb",),
    "seq_len": ("sequence_length",),
    "gradient_accumulation_steps": (),
    "num_gpus": (),
    "outcome": (),
}
CONTEXT = ("gpu", "model", "dataset", "seq_len", "method", "model_memory_gb")
COMPLETED = ("", "ok", "completed")
SPEEDS = ("samples_per_s", "step_time_s", "tokens_per_s_per_gpu")


class SweepTable(NamedTuple):
    """The observations of a table, and what all of its rows share."""

    name: str
    observations: tuple[Observation, ...]
    context: Mapping[str, str]
    mixed: Mapping[str, tuple[str, ...]]  # columns of CONTEXT with several values
    num_left_out: int  # rows that did not complete


class _Row(NamedTuple):
    """One row under our column names, with its place for messages."""

    cells: Mapping[str, str]
    where: str

    def number(self, column: str, default: float | None = None) -> float:
        """Return the number above zero in `column`."""
        cell = self.cells.get(column, "")
        if not cell and default is not None:
            return default
        try:
            value = float(cell)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e15:
            raise FieldError(f"{self.where}: {column} should be a number above 0, not {shown(cell)}.")
        return value

    def whole(self, column: str) -> int:
        """Return the whole number above zero in `column`."""
        value = self.number(column)
        if value != int(value):
            raise FieldError(f"{self.where}: {column} should be a whole number, not {value:g}.")
        return int(value)


def read_sweep(path: str, equation: Form, where: Sequence[str] = ()) -> SweepTable:
    """Return the sweep in the CSV file at `path`, as `equation` needs it.

    Each item of `where` is "column=value"; other rows are left out.

    Raises: InputError, FileFormatError and FieldError, each naming file, line and column.
    """
    name = os.path.basename(path)
    header, rows = _read(path, name)
    chosen = [row for row in rows if _matches(row, where, header, name)]
    done = [row for row in chosen if row.cells.get("outcome", "").casefold() in COMPLETED]
    if not done:
        said = f" with {' and '.join(where)}" if where else ""
        raise InputError(f"{name}: no completed row{said}.")
    observe = _reader(equation, done[0].cells, name)
    values = {c: tuple(dict.fromkeys(r.cells[c] for r in done)) for c in CONTEXT if c in done[0].cells}
    context = {c: seen[0] for c, seen in values.items() if len(seen) == 1 and seen[0]}
    if found := known_gpu(context.get("gpu", "")):
        context["gpu"] = found.name
    return SweepTable(
        name=name,
        observations=tuple(observe(row) for row in done),
        context=context,
        mixed={c: seen for c, seen in values.items() if len(seen) > 1},
        num_left_out=len(chosen) - len(done),
    )


def _read(path: str, name: str) -> tuple[list[str], list[_Row]]:
    lines = [cells for cells in parse_csv(read_text(path, MAX_DOCUMENT_BYTES), name) if any(cells)]
    if not lines:
        raise FileFormatError(f"{name} is empty; the first line names the columns.")
    header, *body = lines
    header = [column.strip() for column in header]
    ours = {alias: column for column, aliases in ALIASES.items() for alias in (column, *aliases)}
    rows = []
    for number, cells in enumerate(body, start=2):
        if len(cells) != len(header):
            raise FileFormatError(f"{name}, line {number}: {len(header)} cells expected, {len(cells)} found.")
        named = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        known = {ours.get(column.casefold(), column): cell for column, cell in named.items()}
        rows.append(_Row({**named, **known}, f"{name}, line {number}"))
    return header, rows


def _matches(row: _Row, where: Sequence[str], header: Sequence[str], name: str) -> bool:
    for condition in where:
        column, equals, value = condition.partition("=")
        if not equals or column not in row.cells:
            raise InputError(
                f"--where {shown(condition)}: {name} has no such column.{did_you_mean(column, header)}"
                if equals
                else f"--where {shown(condition)} should be COLUMN=VALUE."
            )
        if row.cells[column].casefold() != value.strip().casefold():
            return False
    return True


def _reader(equation: Form, cells: Mapping[str, str], name: str) -> Callable[[_Row], Observation]:
    if equation.quantity == MAX_BATCH:
        for column in ("max_batch", "gpu_memory_gb", "model_memory_gb", "seq_len"):
            _require(column, cells, name)
        return _capacity_row
    _require("batch", cells, name)
    speeds = [column for column in SPEEDS if column in cells]
    if not speeds:
        near = "".join(filter(None, (did_you_mean(column, cells) for column in SPEEDS[:2])))
        raise InputError(f"{name} has no column {', '.join(SPEEDS[:2])} or {SPEEDS[2]}.{near}")
    if speeds[0] == "tokens_per_s_per_gpu":
        _require("seq_len", cells, name)
    return lambda row: _speed_row(row, next((c for c in speeds if row.cells[c]), speeds[0]))


def _require(column: str, cells: Mapping[str, str], name: str) -> None:
    if column not in cells:
        others = f" ({', '.join(ALIASES[column])})" if ALIASES[column] else ""
        near = did_you_mean(column, cells).replace("Did you mean", "Should it be the one called")
        raise InputError(f"{name} has no column '{column}'{others}.{near}")


def _speed_row(row: _Row, column: str) -> Observation:
    batch, measured = row.whole("batch"), row.number(column)
    if column == "samples_per_s":
        rate = measured / row.number("num_gpus", 1.0)
    elif column == "step_time_s":
        rate = batch * row.number("gradient_accumulation_steps", 1.0) / measured
    else:
        rate = measured / row.number("seq_len")
    return Observation(Condition(batch=batch, sparsity_fraction=row.number("sparsity", 1.0)), rate)


def _capacity_row(row: _Row) -> Observation:
    condition = Condition(
        sparsity_fraction=row.number("sparsity", 1.0),
        seq_len=row.whole("seq_len"),
        gpu_memory_bytes=row.number("gpu_memory_gb") * GB,
        model_memory_bytes=row.number("model_memory_gb") * GB,
    )
    return Observation(condition, float(row.whole("max_batch")))
