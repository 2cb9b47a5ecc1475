"""How evenly a router loads its experts, before tuning and after it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.render.plots.drawing import BLUE, INK, ORANGE, SKY, new_axes
from finegauge.render.report import Plot, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = "experts"
COLOURS = {"before tuning": ORANGE, "after tuning": BLUE}
HEIGHT_INCHES = 3.1


class Load(NamedTuple):
    """The tokens that each expert was given, layer by layer."""

    when: str
    layers: Mapping[str, tuple[float, ...]]

    @property
    def shares(self) -> list[float]:
        """Return the percent of all tokens that each expert got, over all layers."""
        sums = [sum(each) for each in zip(*self.layers.values(), strict=True)]
        return [100.0 * one / (sum(sums) or 1.0) for one in sums]


def loads_of(observations: Mapping[str, Any]) -> list[Load]:
    """Return what a measurement saw of the experts: before and after tuning, or in its steps."""
    evaluation = observations.get("evaluation") or {}
    states = [
        ("before tuning", evaluation.get("experts_before")),
        ("after tuning", evaluation.get("experts_after")),
    ]
    found = [_load(when, seen) for when, seen in states if seen and seen.get("layers")]
    if not found and (observations.get("experts") or {}).get("layers"):
        found = [_load("measured steps", observations["experts"])]
    return [one for one in found if one.layers and len({len(each) for each in one.layers.values()}) == 1]


def experts_plot(loads: Sequence[Load]) -> Plot | None:
    """Return the load of the experts; None where none was seen."""
    if not loads:
        return None
    even = 100.0 / len(loads[0].shares)
    said = ", ".join(f"{_imbalance(load):.2f} {load.when}" for load in loads)
    caption = (
        f"Share of the tokens that each of {len(loads[0].shares)} experts gets, over all layers; the line "
        f"is an even load ({even:.3g} %). The fullest expert of a layer has, on average over layers, "
        f"{said} times the mean."
    )
    return Plot(KEY, "Load of the experts", caption, _table(loads), lambda: draw_experts(loads, even))


def draw_experts(loads: Sequence[Load], even: float) -> "Figure":
    """Return bars side by side, an expert's loads together."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_axes(HEIGHT_INCHES)
    width = 0.8 / len(loads)
    for number, load in enumerate(loads):
        shift = (number - (len(loads) - 1) / 2) * width
        places = [n + shift for n in range(len(load.shares))]
        axes.bar(places, load.shares, width, color=COLOURS.get(load.when, SKY), label=load.when)
    axes.axhline(even, color=INK, ls="--", lw=1)
    axes.set(xlabel="expert", ylabel="% of tokens", xlim=(-0.6, len(loads[0].shares) - 0.4))
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    if len(loads) > 1:
        axes.legend(loc="upper left", ncols=2)
    return figure


def _load(when: str, seen: Mapping[str, Any]) -> Load:
    layers = seen["layers"]
    named = layers.items() if isinstance(layers, Mapping) else ((str(n), one) for n, one in enumerate(layers))
    return Load(when, {name: tuple(one.get("tokens_per_expert", ())) for name, one in named})


def _imbalance(load: Load) -> float:
    ratios = [max(each) * len(each) / sum(each) for each in load.layers.values() if sum(each)]
    return sum(ratios) / len(ratios) if ratios else 0.0


def _table(loads: Sequence[Load]) -> Table:
    rows = [
        (layer, load.when, *(f"{count:,.0f}" for count in counts))
        for layer in loads[0].layers
        for load in loads
        if (counts := load.layers.get(layer)) is not None
    ]
    headings = ("layer", "when", *(f"expert {n}" for n in range(len(loads[0].shares))))
    return Table("Tokens of each expert by layer", headings, tuple(rows), num_text_columns=2)
