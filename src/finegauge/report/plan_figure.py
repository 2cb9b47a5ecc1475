"""The Pareto front of a plan as a PNG: dollars over hours, the kWh as the size of the dot."""

from typing import TYPE_CHECKING

from finegauge.plan.plan import Plan
from finegauge.report import figures
from finegauge.report.charts import DPI, SETTINGS, check_matplotlib
from finegauge.report.plan import plan_name
from finegauge.units import HOUR_S, KWH_J

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from finegauge.plan.search import Candidate

INCHES = (10.4, 4.8)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
LEAST_AREA, MOST_AREA = 25.0, 320.0  # of a dot, in points²


def save_front(plan: Plan, path: str) -> str:
    """Draw the front of `plan` to the PNG at `path`, and return that path.

    Raises: UnsupportedError where matplotlib is missing.
    """
    check_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(SETTINGS):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log")
        _draw(axes, plan)
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
    return path


def _draw(axes: "Axes", plan: Plan) -> None:
    """Draw one numbered dot per plan, coloured by its kind of GPU; the legend says what each is."""
    from matplotlib.ticker import FuncFormatter

    spot = plan.wanted.spot
    points = [one for one in plan.front if _usd(one, spot=spot) is not None]
    gpus = list(dict.fromkeys(one.run.gpu for one in points))
    most = max((one.energy_j or 0.0 for one in points), default=0.0) or 1.0
    for number, one in enumerate(points, start=1):
        place = one.wall_s / HOUR_S, _usd(one, spot=spot) or 0.0
        taken = plan.winner is not None and one.run == plan.winner.run
        axes.scatter(
            *place,
            s=LEAST_AREA + MOST_AREA * (one.energy_j or 0.0) / most,
            color=COLOURS[gpus.index(one.run.gpu) % len(COLOURS)],
            alpha=0.75,
            edgecolors="#1a1a1a" if taken else "none",
            label=f"{number}  {plan_name(one.run, plan.winner.run if plan.winner else plan.run)}",
        )
        weight = "bold" if taken else "normal"
        axes.annotate(str(number), place, xytext=(6, 5), textcoords="offset points", fontweight=weight)
    for axis in (axes.xaxis, axes.yaxis):
        for set_formatter in (axis.set_major_formatter, axis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("hours, start to end")
    axes.set_ylabel("dollars on spot instances" if spot else "dollars on demand")
    axes.set_title(f"Cost, time and energy (largest dot: {figures.digits(most / KWH_J)} kWh at the wall)")
    axes.margins(0.12)
    if points:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), markerscale=0.6, handletextpad=0.3)


def _usd(one: "Candidate", *, spot: bool) -> float | None:
    return one.spot_usd if spot else one.usd
