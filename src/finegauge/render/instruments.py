"""What each instrument of a measurement saw, and what users of an endpoint waited for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from finegauge.answers.measurement import Measurement
from finegauge.render import number_format as fmt
from finegauge.render.report import Block, Note, Section, Table, section
from finegauge.units import counted

WAITS = {
    "ttft_s": "to the first token",
    "time_per_output_token_s": "each further token",
    "inter_token_latency_s": "between chunks",
    "latency_s": "whole answer",
}
PERCENTILES = ("mean", "p50", "p90", "p99")
MOST_FAILURES = 5
MOST_ROWS = 12
CHOICES = {"acc_fraction": "choice", "acc_norm_fraction": "choice, by length"}
HOST, BETWEEN = "host", "between them"

Seen = Mapping[str, Any]


def instrument_sections(observations: Seen) -> Iterator[Section]:
    """Yield a section for every instrument that saw something."""
    for name, show in SHOWN.items():
        if name == "steps" and "serving" in observations:
            continue  # which says at length what these say in short
        if observations.get(name):
            yield show(observations[name])


def _rows(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], num_text: int = 1) -> Table:
    return Table(caption, tuple(headings), tuple(map(tuple, rows)), num_text, indent=2)


def _serving(seen: Seen) -> Section:
    if "latency_s" not in seen:
        return section("serving", "", *_failures(seen))
    rows = [
        [words, *(fmt.duration(seen[name][p]) for p in PERCENTILES)]
        for name, words in WAITS.items()
        if seen.get(name)
    ]
    text = (
        f"  {fmt.digits(seen['requests_per_s'])} requests/s, "
        f"{fmt.digits(seen['written_tokens_per_s'])} tokens/s generated, "
        f"{fmt.digits(seen['prompt_tokens_per_s'])} tokens/s read; prompts of "
        f"{seen['prompt_tokens']:,.0f} tokens, answers of {seen['written_tokens']:,.0f}; "
        f"{fmt.digits(seen['in_flight'])} requests in flight."
    )
    said = f"{seen['num_requests']:,} requests, {_load(seen)}"
    table = _rows("Waits", ("wait", *PERCENTILES), rows)
    return section("serving", "Serving", table, Note(text), *_failures(seen), said=said)


def _load(seen: Seen) -> str:
    if seen["asked_requests_per_s"]:
        return f"{fmt.digits(seen['asked_requests_per_s'])} a second, arriving by chance"
    return f"{counted(seen['num_users'], 'user')} at a time"


def _failures(seen: Seen) -> Iterator[Note]:
    failures = sorted(dict(seen.get("failures", {})).items(), key=lambda item: -item[1])
    for why, times in failures[:MOST_FAILURES]:
        yield Note(f"  {times:,} failed: {why}")


def load_table(found: Sequence[Measurement]) -> Table:
    """Return one row for each load of one endpoint, with the tokens per second that are predicted for it."""
    known = any(_predicted_rate(one) for one in found)
    rows = []
    for one in found:
        if not one.is_whole:
            continue
        seen = one.profile.observations.get("serving", {})
        per_token = seen["time_per_output_token_s"]
        row = (
            f"{seen['num_users']:,}",
            *(fmt.duration(seen["ttft_s"][p]) for p in ("p50", "p99")),
            *(fmt.duration(per_token[p]) if per_token else fmt.UNKNOWN for p in ("p50", "p99")),
            fmt.duration(seen["latency_s"]["p50"]),
            fmt.digits(seen["requests_per_s"]),
            fmt.digits(seen["written_tokens_per_s"]),
        )
        rows.append((*row, *([_predicted_rate(one) or fmt.UNKNOWN] if known else [])))
    headings = (
        "\nusers", "first token\np50", "\np99", "further token\np50", "\np99", "answer\np50",
        "\nrequests/s", "generated\ntokens/s", *(["predicted\ntokens/s"] if known else []),
    )  # fmt: skip
    return Table("A row for each load", headings, tuple(rows), indent=2)


def _predicted_rate(one: Measurement) -> str:
    profile = one.predicted
    if profile is None or not profile.step_time_s.total:
        return ""
    new_tokens = 1 if profile.run.phase == "prefill" else profile.run.max_new_tokens
    return fmt.digits(profile.samples_per_s * new_tokens)


def _kernels(seen: Seen) -> Section:
    if "by_kind_s" not in seen:
        return _not_available("Kernels", seen)
    step_s, kinds = seen.get("step_time_s") or 1.0, dict(seen["by_kind_s"])
    between_s = step_s - sum(kinds.values())
    rows = [
        [kind, fmt.duration(seconds), fmt.percent(seconds / step_s)]
        for kind, seconds in [*list(kinds.items())[:MOST_ROWS], (BETWEEN, between_s)]
        if kind != BETWEEN or between_s > 0
    ]
    said = f"under the profiler; GPU waits for CPU {fmt.percent(seen['host_bound_fraction'])}"
    table = _rows("Kernels by kind", ("kind", "a step", "share"), rows)
    return section("kernels", "Kernels", table, *_utilisation(seen), _places(seen, step_s), said=said)


def _utilisation(seen: Seen) -> Iterator[Note]:
    used = (seen.get("utilisation") or {}).get("all")
    if not used:
        return

    def of_peak(name: str) -> str:
        return f" ({fmt.percent(used[name])} of the peak)" if name in used else ""

    compute = f"{fmt.si(used['flops_per_s'])}FLOP/s{of_peak('compute_fraction')}"
    memory = f"{fmt.size(used['memory_bytes_per_s'])}/s{of_peak('memory_fraction')}"
    yield Note(f"  While kernels run: {compute}, {memory}, weighted by time.")


def _places(seen: Seen, step_s: float) -> Table:
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
            *(*place, fmt.duration(seconds), fmt.percent(seconds / step_s)),
            f"{fmt.si(flops / seconds)}FLOP/s" if flops else fmt.UNKNOWN,
        ]
        for place, (seconds, flops) in largest
        if seconds > 0
    ]
    return _rows("Kernels by place", ("stage", "where", "kind", "a step", "share", "rate"), rows, 3)


def _experts(seen: Seen) -> Section:
    layers = seen.get("layers")
    if not layers:
        return _not_available("Experts", seen)
    named = layers.items() if isinstance(layers, Mapping) else enumerate(layers)
    rows = [
        [
            str(one.get("layer", name)),
            " ".join(f"{count:,.0f}" for count in one.get("tokens_per_expert", one.get("counts", []))),
            f"{one['imbalance_ratio']:.2f}" if "imbalance_ratio" in one else fmt.UNKNOWN,
        ]
        for name, one in list(named)[:MOST_ROWS]
    ]
    table = _rows("Load of the experts", ("layer", "tokens per expert", "max/mean"), rows)
    said = "tokens of each, and the fullest over the mean"
    return section("loads", "Experts", table, *_capacity(seen), said=said)


def _capacity(seen: Seen) -> Iterator[Note]:
    mean, capacity = seen.get("mean"), seen.get("capacity")
    if not mean or not capacity:
        return
    dropped = ", ".join(
        f"{fmt.percent(one['dropped_fraction'])} at {one['capacity_factor']:g}x"
        for one in capacity["factors"]
    )
    yield Note(
        f"  On average the fullest has {mean['imbalance_ratio']:.2f} times the mean, variance "
        f"{fmt.digits(mean['variance_population'])} (sample {fmt.digits(mean['variance_sample'])}). "
        f"Capped at the mean times a factor, tokens dropped: {dropped}. Padded to the fullest, "
        f"{capacity['padded_to_fullest_rows_ratio']:.2f} times the rows."
    )


def _energy(seen: Seen) -> Section:
    joules, steps = seen.get("energy_j"), seen.get("steps") or 1
    said = f"not measured: {seen.get('note') or 'no meter on this machine'}"
    if joules is not None:
        said = f"{fmt.digits(joules / steps)} J a step ({seen['source']})"
    return _one_line("Energy", said)


def _evaluation(seen: Seen) -> Section:
    epochs = seen.get("epochs") or ()
    if not epochs:
        return section("accuracy", "")
    choices = {name: words for name, words in CHOICES.items() if name in epochs[0]}
    rows = [
        [
            str(epoch["epoch"]),
            fmt.percent(epoch["exact_match_fraction"]),
            *(fmt.percent(epoch[name]) for name in choices),
            fmt.UNKNOWN if epoch.get("loss") is None else f"{epoch['loss']:.3f}",
        ]
        for epoch in epochs
    ]
    said = f"on {seen.get('task', 'the task')}, {seen.get('num_test', 0)} questions"
    table = _rows("Accuracy", ("epoch", "exact match", *choices.values(), "loss"), rows)
    return section("accuracy", "Accuracy", table, said=said)


def _tasks(seen: Seen) -> Section:
    """Return the scores of lm-evaluation-harness: "acc,none 0.31"."""
    rows = [[task, metric, f"{value:.4f}"] for task, found in seen.items() for metric, value in found.items()]
    table = _rows("Tasks", ("task", "metric", "score"), rows, 2)
    return section("tasks", "Tasks", table, said="of lm-evaluation-harness")


def _steps(seen: Seen) -> Section:
    details = [f"{name} {fmt.digits(value, 4)}" for name, value in seen.get("details", {}).items()]
    losses = [loss for loss in seen.get("losses", ()) if loss is not None]
    if losses:
        details.insert(0, f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    return _one_line("Steps", ", ".join(details))


def _layers(seen: Seen) -> Section:
    ratio = seen.get("overhead_ratio")
    said = f"under the layer clock a step takes {100 * (ratio - 1):+.1f} %" if ratio else ""
    return _one_line("Layers", said, *(Note(f"  {note}") for note in seen.get("notes", ())))


def _counters(seen: Seen) -> Section:
    shown = [
        f"{name.removesuffix('_fraction').replace('_', ' ')} {fmt.percent(value)}"
        for name, value in seen.items()
        if name.endswith("_fraction") and isinstance(value, float)
    ]
    return _one_line("Counters", ", ".join(shown)) if shown else _not_available("Counters", seen)


def _not_available(name: str, seen: Seen) -> Section:
    why = seen.get("unavailable")
    return _one_line(name, f"not available: {why}" if why else "")


def _one_line(name: str, said: str, *more: Block) -> Section:
    return section(name.lower(), "", Note(said, label=name) if said else None, *more)


SHOWN: dict[str, Callable[[Seen], Section]] = {
    "steps": _steps,
    "serving": _serving,
    "layers": _layers,
    "kernels": _kernels,
    "gpm": _counters,
    "ncu": _counters,
    "experts": _experts,
    "energy": _energy,
    "tasks": _tasks,
    "evaluation": _evaluation,
}
