"""What each instrument of a measurement saw, in a few lines each."""

from collections.abc import Mapping
from typing import Any

from finegauge.profile import Profile
from finegauge.report import figures
from finegauge.report.terminal import columns, paint, wrapped

MOST_ROWS = 12


def instrument_lines(measured: Profile) -> list[str]:
    """Return a block of lines for every instrument that saw something, a blank line between them."""
    seen, lines = measured.observations, list[str]()
    for name, show in SHOWN.items():
        if seen.get(name):
            block = show(seen[name])
            lines += [*([""] if lines and block else []), *block]
    return lines


def kernel_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the kinds of kernels by time, and how well they used the device."""
    if "by_kind_s" not in seen:
        return _not_available("Kernels", seen)
    step_s = seen.get("step_time_s") or 1.0
    rows = [
        [f"  {kind}", figures.duration(seconds), figures.percent(seconds / step_s)]
        for kind, seconds in list(seen["by_kind_s"].items())[:MOST_ROWS]
    ]
    host = figures.percent(seen["host_bound_fraction"])
    title = f"{paint('Kernels', 'bold')}, under the profiler; host-bound {host}"
    return [title, *columns(["  kind", "a step", "share"], rows), *_utilisation_lines(seen)]


def _utilisation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return achieved rates over peaks, weighted by time, where the peaks are known."""
    used = seen.get("utilisation") or {}
    shown = [
        f"{name.removesuffix('_fraction').replace('_', ' ')} {figures.percent(value)}"
        for name, value in used.items()
        if name.endswith("_fraction") and isinstance(value, float)
    ]
    return [f"  time-weighted utilisation: {', '.join(shown)}"] if shown else []


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
    return [title, *columns(["  layer", "tokens per expert", "max/mean"], rows)]


def energy_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the joules of a step and who counted them."""
    joules, steps = seen.get("energy_j"), seen.get("steps") or 1
    if joules is None:
        return [f"{paint('Energy', 'bold')}  not measured: {seen.get('note') or 'no meter on this machine'}"]
    return [f"{paint('Energy', 'bold')}  {figures.digits(joules / steps)} J a step ({seen['source']})"]


def evaluation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the accuracy before tuning and after each epoch."""
    rows = [
        [
            f"  {epoch['epoch']}",
            figures.percent(epoch["exact_match_fraction"]),
            figures.UNKNOWN if epoch.get("loss") is None else f"{epoch['loss']:.3f}",
        ]
        for epoch in seen.get("epochs", ())
    ]
    title = (
        f"{paint('Accuracy', 'bold')} on {seen.get('task', 'the task')}, {seen.get('num_test', 0)} questions"
    )
    return [title, *columns(["  epoch", "exact match", "loss"], rows)] if rows else []


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
    "layers": layer_lines,
    "kernels": kernel_lines,
    "gpm": utilisation_lines,
    "ncu": utilisation_lines,
    "experts": expert_lines,
    "energy": energy_lines,
    "evaluation": evaluation_lines,
}
