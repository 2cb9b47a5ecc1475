"""What each instrument of a measurement saw, in a few lines each."""

from collections.abc import Mapping
from typing import Any

from finegauge.profile import Profile
from finegauge.report import figures
from finegauge.report.serving import serving_lines
from finegauge.report.terminal import columns, paint, wrapped

MOST_ROWS = 12
CHOICES = {"acc_fraction": "choice", "acc_norm_fraction": "choice, by length"}
HOST, BETWEEN = "host", "between them"


def instrument_lines(measured: Profile) -> list[str]:
    """Return a block of lines for every instrument that saw something, a blank line between them."""
    seen, lines = dict(measured.observations), list[str]()
    if "serving" in seen:
        del seen["steps"]  # which says in short what it says at length
    for name, show in SHOWN.items():
        if seen.get(name):
            block = show(seen[name])
            lines += [*([""] if lines and block else []), *block]
    return lines


def kernel_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the kinds of kernels by time, and how well they used the device."""
    if "by_kind_s" not in seen:
        return _not_available("Kernels", seen)
    step_s, kinds = seen.get("step_time_s") or 1.0, dict(seen["by_kind_s"])
    between_s = step_s - sum(kinds.values())
    rows = [
        [f"  {kind}", figures.duration(seconds), figures.percent(seconds / step_s)]
        for kind, seconds in [*list(kinds.items())[:MOST_ROWS], (BETWEEN, between_s)]
        if kind != BETWEEN or between_s > 0
    ]
    host = figures.percent(seen["host_bound_fraction"])
    title = f"{paint('Kernels', 'bold')}, under the profiler; host-bound {host}"
    table = columns(["  kind", "a step", "share"], rows)
    return [title, *table, *_utilisation_lines(seen), *_place_lines(seen, step_s)]


def _utilisation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return achieved rates, weighted by time, and what they are of the peaks where these are known."""
    used = (seen.get("utilisation") or {}).get("all")
    if not used:
        return []

    def of_peak(name: str) -> str:
        return f" ({figures.percent(used[name])} of the peak)" if name in used else ""

    compute = f"{figures.si(used['flops_per_s'])}FLOP/s{of_peak('compute_fraction')}"
    memory = f"{figures.size(used['memory_bytes_per_s'])}/s{of_peak('memory_fraction')}"
    text = f"While kernels run: {compute}, {memory}, weighted by time."
    return [f"  {line}" for line in wrapped(text, indent="  ")]


def _place_lines(seen: Mapping[str, Any], step_s: float) -> list[str]:
    """Return where in the model the most time goes, by kind of kernel, with the rate of multiplying."""
    places: dict[tuple[str, ...], list[float]] = {}
    for row in seen.get("rows", ()):
        if row["kind"] == HOST or not row["role"]:
            continue
        sums = places.setdefault((row["stage"], " ".join(row["role"]), row["kind"]), [0.0, 0.0])
        sums[0] += row["time_s"]
        sums[1] += row["flops"]
    largest = sorted(places.items(), key=lambda item: -item[1][0])[:MOST_ROWS]
    rows = [
        [
            *(f"  {place[0]}", *place[1:], figures.duration(seconds), figures.percent(seconds / step_s)),
            f"{figures.si(flops / seconds)}FLOP/s" if flops else figures.UNKNOWN,
        ]
        for place, (seconds, flops) in largest
        if seconds > 0
    ]
    return (
        ["", *columns(["  stage", "where", "kind", "a step", "share", "rate"], rows, left=3)] if rows else []
    )


def expert_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the load of the experts, layer by layer."""
    layers = seen.get("layers")
    if not layers:
        return _not_available("Experts", seen)
    named = layers.items() if isinstance(layers, Mapping) else enumerate(layers)
    rows = [
        [
            f"  {one.get('layer', name)}",
            " ".join(f"{count:,.0f}" for count in one.get("tokens_per_expert", one.get("counts", []))),
            f"{one['imbalance_ratio']:.2f}" if "imbalance_ratio" in one else figures.UNKNOWN,
        ]
        for name, one in list(named)[:MOST_ROWS]
    ]
    title = f"{paint('Experts', 'bold')}, tokens of each, and the fullest over the mean"
    return [title, *columns(["  layer", "tokens per expert", "max/mean"], rows), *_capacity_lines(seen)]


def _capacity_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return how uneven the load is on average, and what equal places for every expert would cost."""
    mean, capacity = seen.get("mean"), seen.get("capacity")
    if not mean or not capacity:
        return []
    dropped = ", ".join(
        f"{figures.percent(one['dropped_fraction'])} at {one['capacity_factor']:g}x"
        for one in capacity["factors"]
    )
    text = (
        f"On average the fullest has {mean['imbalance_ratio']:.2f} times the mean, variance "
        f"{figures.digits(mean['variance_population'])} (sample {figures.digits(mean['variance_sample'])}). "
        f"Capped at the mean times a factor, tokens dropped: {dropped}. Padded to the fullest, "
        f"{capacity['padded_to_fullest_rows_ratio']:.2f} times the rows."
    )
    return [f"  {line}" for line in wrapped(text, indent="    ")]


def energy_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the joules of a step and who counted them."""
    joules, steps = seen.get("energy_j"), seen.get("steps") or 1
    if joules is None:
        return [f"{paint('Energy', 'bold')}  not measured: {seen.get('note') or 'no meter on this machine'}"]
    return [f"{paint('Energy', 'bold')}  {figures.digits(joules / steps)} J a step ({seen['source']})"]


def evaluation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the accuracy before tuning and after each epoch."""
    epochs = seen.get("epochs") or ()
    if not epochs:
        return []
    choices = {name: words for name, words in CHOICES.items() if name in epochs[0]}
    rows = [
        [
            f"  {epoch['epoch']}",
            figures.percent(epoch["exact_match_fraction"]),
            *(figures.percent(epoch[name]) for name in choices),
            figures.UNKNOWN if epoch.get("loss") is None else f"{epoch['loss']:.3f}",
        ]
        for epoch in epochs
    ]
    title = (
        f"{paint('Accuracy', 'bold')} on {seen.get('task', 'the task')}, {seen.get('num_test', 0)} questions"
    )
    return [title, *columns(["  epoch", "exact match", *choices.values(), "loss"], rows)]


def task_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the scores of lm-evaluation-harness: "acc,none 0.31"."""
    rows = [
        [f"  {task}", metric, f"{value:.4f}"]
        for task, found in seen.items()
        for metric, value in found.items()
    ]
    title = f"{paint('Tasks', 'bold')} of lm-evaluation-harness"
    return [title, *columns(["  task", "metric", "score"], rows, left=2)] if rows else []


def step_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return what else the steps report: the time to the first token, rewards, losses."""
    details = [f"{name} {figures.digits(value, 4)}" for name, value in seen.get("details", {}).items()]
    losses = [loss for loss in seen.get("losses", ()) if loss is not None]
    if losses:
        details.insert(0, f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    return wrapped(f"{paint('Steps', 'bold')}  {', '.join(details)}", indent="  ") if details else []


def layer_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return what the layer clock cost and noted."""
    ratio = seen.get("overhead_ratio")
    lines = [] if not ratio else [
        f"{paint('Layers', 'bold')}  under the layer clock a step takes {100 * (ratio - 1):+.1f} %"
    ]  # fmt: skip
    return lines + [line for note in seen.get("notes", ()) for line in wrapped(f"  {note}", indent="    ")]


def utilisation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the counters of the device: SM, DRAM and tensor cores, weighted by time."""
    shown = [
        f"{name.removesuffix('_fraction').replace('_', ' ')} {figures.percent(value)}"
        for name, value in seen.items()
        if name.endswith("_fraction") and isinstance(value, float)
    ]
    if not shown:
        return _not_available("Counters", seen)
    return wrapped(f"{paint('Counters', 'bold')}  {', '.join(shown)}", indent="  ")


def _not_available(name: str, seen: Mapping[str, Any]) -> list[str]:
    """Return why an instrument saw nothing."""
    why = seen.get("unavailable")
    return wrapped(f"{paint(name, 'bold')}  not available: {why}", indent="  ") if why else []


SHOWN = {
    "steps": step_lines,
    "serving": serving_lines,
    "layers": layer_lines,
    "kernels": kernel_lines,
    "gpm": utilisation_lines,
    "ncu": utilisation_lines,
    "experts": expert_lines,
    "energy": energy_lines,
    "tasks": task_lines,
    "evaluation": evaluation_lines,
}
