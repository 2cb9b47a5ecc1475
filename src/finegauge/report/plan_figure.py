"""The Pareto front of a plan as a PNG: dollars over hours, the kWh as the size of the dot."""

from finegauge.plan.plan import Plan
from finegauge.report.charts import check_matplotlib
from finegauge.report.drawing import Drawing, png
from finegauge.report.drawings.front import Way, front_drawing
from finegauge.report.plan import plan_name


def save_front(plan: Plan, path: str) -> str:
    """Draw the front of `plan` to the PNG at `path`, and return that path.

    Raises: UnsupportedError where matplotlib is missing.
    """
    check_matplotlib()
    drawing = plan_front(plan)
    if drawing is not None:
        with open(path, "wb") as file:
            file.write(png(drawing))
    return path


def plan_front(plan: Plan) -> Drawing | None:
    """Return the front of `plan` as a figure; None where no price is known of it."""
    spot, taken = plan.wanted.spot, plan.winner.run if plan.winner else None
    ways = [
        Way(
            plan_name(one.run, taken or plan.run), str(one.run.gpu), one.wall_s, usd, one.energy_j,
            taken=one.run == taken,
        )
        for one in plan.front
        if (usd := one.spot_usd if spot else one.usd) is not None
    ]  # fmt: skip
    return front_drawing(ways, about="Plans of the Pareto front of cost, time and energy", spot=spot)
