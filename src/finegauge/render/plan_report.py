"""The report about a plan: which to take, what it changes, what surrounds it, and why not another.

It is made of what `finegauge plan --json` prints, so that a plan just found and one kept in a file
look alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.answers.profile import profile_of
from finegauge.answers.study import Way
from finegauge.errors import FileFormatError, shown
from finegauge.render import number_format as fmt
from finegauge.render.plan import ASPECTS, SUPERLATIVES
from finegauge.render.plots.many_runs import front_plot
from finegauge.render.plots.step import memory_plot, step_time_plot
from finegauge.render.report import (
    BAD,
    NEUTRAL,
    Block,
    Report,
    Table,
    Tile,
    filled,
    notes,
    section,
)
from finegauge.render.run_parts import TONES, input_table, memory_bar, subject, time_bar
from finegauge.render.stored import run_in
from finegauge.run.rules import LORA_FIELDS
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.render.report import Plot
    from finegauge.run.run import Run

PLAIN_FIELDS = frozenset({"method", "sharding", "optimizer"})
FOLLOWING = frozenset({"weights_dtype", "loss", "padding", "gradient_accumulation_steps", *LORA_FIELDS})
REASONS = {"beaten": "costs more of what is minimised"}


def plan_report(document: Mapping[str, Any], path: str = "the plan") -> Report:
    """Return the report about the plan that `document`, the JSON of `finegauge plan`, holds.

    Raises: FileFormatError where it lacks what it needs.
    """
    run = run_in(document, path)
    try:
        return _report(run, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{shown(path)} is no whole plan of FineGauge: {error!r}.") from None


def _report(run: "Run", document: Mapping[str, Any]) -> Report:
    """Return the report about a plan of `run`."""
    winner = next(iter(document["results"]), None)
    name = run.model.rpartition("/")[2] or run.model
    texts = [f"{document['num_evaluated']:,} of {document['num_candidates']:,} plans were timed; "
             f"{document['num_on_front']:,} are beaten by no other in cost, time and energy."]  # fmt: skip
    if document.get("assumed_samples"):
        texts.append(
            f"The run does not state its length: {document['assumed_samples']:,} samples are assumed."
        )
    texts += document.get("notes", ())
    return Report(
        title=f"Plan for {name}",
        headline=_verdict(document, winner),
        tone=BAD if winner is None else TONES.get(winner["verdict"], NEUTRAL),
        subject=(subject(run),),
        tiles=tuple(_tiles(winner)) if winner else (),
        sections=filled(
            section("cost", "Cost against time", *notes(texts), _front(document, winner)),
            section("changes", "What the plan changes", _changes(run, winner)),
            section("relaxations", "If you raise a limit", _relaxations(document)),
            section("alternatives", "Why not another", *_alternatives(document)),
            section("plan", "The plan's step", *_step(winner)),
            section("assumptions", "The run as it is, and who says so", *notes(run.warnings),
                    input_table(run)),
        ),
    )  # fmt: skip


def _verdict(document: Mapping[str, Any], winner: Mapping[str, Any] | None) -> str:
    """Return the answer in a sentence."""
    wanted = document["wanted"]
    limits = []
    if wanted["within_s"] is not None:
        limits.append(fmt.hours(wanted["within_s"]))
    if wanted["budget_usd"] is not None:
        limits.append(fmt.dollars(wanted["budget_usd"]))
    within = f" within {' and '.join(limits)}" if limits else ""
    if winner is None:
        nearest = document.get("nearest") or {}
        return f"No plan{within}: {nearest.get('limit') or 'nothing'} stands against it.{_closest(nearest)}"
    usd = winner["spot_usd"] if wanted["spot"] else winner["on_demand_usd"]
    method, market = winner["run"]["method"], "spot" if wanted["spot"] else "on demand"
    return (
        f"{SUPERLATIVES[wanted['minimise']]}{within}: {method} on {_machine(winner)} ({winner['provider']}), "
        f"{fmt.hours(winner['wall_s'])}, {fmt.dollars(usd)} {market}, "
        f"P(OOM) {fmt.probability(winner['out_of_memory_fraction'])}."
    )


def _closest(nearest: Mapping[str, Any]) -> str:
    """Return what the plan takes that misses the limits by least."""
    plan = nearest.get("plan")
    if not plan:
        return ""
    dollars, needed = fmt.dollars(plan["on_demand_usd"]), gib(plan["device_memory_bytes"])
    took = f"{fmt.hours(plan['wall_s'])}, {dollars} on demand, {needed} of {gib(plan['capacity_bytes'])}"
    return f" The closest: {_machine(plan)} ({plan['provider']}), {took}."


def _tiles(winner: Mapping[str, Any]) -> Iterator[Tile]:
    """Yield the winner's numbers."""
    yield Tile("Machine", _machine(winner), str(winner["provider"]))
    yield Tile(
        "Time",
        fmt.hours(winner["wall_s"]),
        f"{fmt.duration(winner['step_time_s'])} a step",
    )
    yield Tile(
        "Cost",
        fmt.dollars(winner["on_demand_usd"]),
        f"spot {fmt.dollars(winner['spot_usd'])}",
    )
    room = gib(winner["capacity_bytes"])
    yield Tile("Memory", gib(winner["device_memory_bytes"]), f"of {room} on each GPU")
    kilograms = fmt.digits(winner["emissions_kg"], 2)
    yield Tile("Energy", f"{fmt.kwh(winner['wall_energy_j'])} kWh", f"at the wall; {kilograms} kg CO2e")


def _machine(candidate: Mapping[str, Any]) -> str:
    """Return "4 x L40S" or "2 nodes x 8 H100"."""
    nodes, many = candidate["num_nodes"], candidate["num_gpus"]
    return (
        f"{nodes} nodes x {many // nodes} {candidate['gpu']}" if nodes > 1 else f"{many} x {candidate['gpu']}"
    )


def _front(document: Mapping[str, Any], winner: Mapping[str, Any] | None) -> "Plot | None":
    """Return the plans of the Pareto front, by cost."""
    spot = document["wanted"]["spot"]
    key = "spot_usd" if spot else "on_demand_usd"
    same = ("gpu", "num_gpus", "provider", "wall_s", "changes")
    ways = [
        Way(
            " · ".join([_machine(one), str(one["provider"]), *_settings(one["changes"])]),
            str(one["gpu"]), one["wall_s"], one[key], one["wall_energy_j"],
            taken=winner is not None and all(one[name] == winner[name] for name in same),
        )
        for one in document["front"]
        if one[key] is not None
    ]  # fmt: skip
    about = "Plans of the Pareto front of cost, time and energy"
    return front_plot(ways, about=about, spot=spot)


def _settings(changes: Mapping[str, Any]) -> list[str]:
    """Return the changes of a plan in a few words, those left out that follow from others."""
    said = []
    for name, value in changes.items():
        text = fmt.plain(_tuple(value))
        if name in PLAIN_FIELDS:
            said.append(text)
        elif name == "activation_checkpointing":
            said.append("no checkpoints" if text == "none" else f"{text} checkpoints")
        elif name not in FOLLOWING:
            said.append(f"{name} {text}")
    return said


def _tuple(value: Any) -> Any:
    """Return a list as the tuple it was."""
    return tuple(value) if isinstance(value, list) else value


def _step(winner: Mapping[str, Any] | None) -> "tuple[Block, ...]":
    """Return the winner's memory and step, as bars and as figures."""
    profile = _profile(winner)
    if profile is None:
        return ()
    return memory_bar(profile), time_bar(profile), memory_plot(profile, {}), step_time_plot(profile)


def _profile(winner: Mapping[str, Any] | None) -> Any:
    """Return the winner's profile; None where there is no winner."""
    if winner is None or not winner.get("profile"):
        return None
    return profile_of(winner["profile"], run_in({"run": winner["run"]}, "the plan"))


def _changes(run: "Run", winner: Mapping[str, Any] | None) -> Table | None:
    """Return every field that the plan has otherwise than the run."""
    if winner is None:
        return None
    before = run.fields()
    rows = tuple(
        (name, fmt.plain(before.get(name)), fmt.plain(_tuple(value)))
        for name, value in winner["changes"].items()
    )
    return Table("Fields that the plan has otherwise", ("field", "run", "plan"), rows, num_text_columns=3)


def _alternatives(document: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table per aspect: the best plan with that choice made otherwise, and why it loses."""
    for aspect, found in document["alternatives"].items():
        rows = tuple((fmt.plain(_tuple(one["value"])), _reason(one), *_taken(one["plan"])) for one in found)
        yield Table(
            f"Another {ASPECTS.get(aspect, aspect)}",
            ("instead", "why not", "time", "on demand", "kWh"),
            rows,
            2,
        )


def _reason(one: Mapping[str, Any]) -> str:
    """Return why an alternative loses."""
    beyond = one.get("over_fraction") or 0.0
    over = f", {fmt.percent(beyond)} over" if beyond > 0 else ""
    return f"{REASONS.get(one['reason'], one['reason'])}{over}"


def _taken(candidate: Mapping[str, Any] | None) -> Sequence[str]:
    """Return what a plan takes."""
    if candidate is None:
        return (fmt.UNKNOWN,) * 3
    dollars, kwh = (
        fmt.dollars(candidate["on_demand_usd"]),
        fmt.kwh(candidate["wall_energy_j"]),
    )
    return fmt.hours(candidate["wall_s"]), dollars, kwh


def _relaxations(document: Mapping[str, Any]) -> Table:
    """Return what a little more of a limit buys."""
    rows = tuple(
        (
            one["limit"],
            gib(one["more_bytes"]) if one.get("more_bytes") else fmt.percent(one["more_fraction"] or 0.0),
            f"{fmt.percent(one['saved_fraction'])} of {one['saves']}", _machine(one["plan"]),
        )
        for one in document["relaxations"]
    )  # fmt: skip
    return Table("What a little more buys", ("limit", "more", "saves", "then"), rows, num_text_columns=4)
