"""What each instrument of a measurement saw, in a few lines each."""

from collections.abc import Mapping, Sequence
from typing import Any

from finegauge.prediction.predictor import Prediction
from finegauge.profile import Profile
from finegauge.render import number_format as fmt
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.run.phases import answer_tokens, micro_steps

WAITS = {
    "ttft_s": "to the first token",
    "time_per_output_token_s": "each further token",
    "inter_token_latency_s": "between chunks",
    "latency_s": "whole answer",
}
PERCENTILES = ("mean", "p50", "p90", "p99")
MOST_FAILURES = 5


def serving_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return how long the users of one load waited, and what the server did in a second."""
    if "latency_s" not in seen:
        return failure_lines(seen)
    rows = [
        [f"  {words}", *(fmt.duration(seen[name][p]) for p in PERCENTILES)]
        for name, words in WAITS.items()
        if seen.get(name)
    ]
    text = (
        f"{fmt.digits(seen['requests_per_s'])} requests/s, "
        f"{fmt.digits(seen['written_tokens_per_s'])} tokens/s written, "
        f"{fmt.digits(seen['prompt_tokens_per_s'])} tokens/s read; prompts of "
        f"{seen['prompt_tokens']:,.0f} tokens, answers of {seen['written_tokens']:,.0f}; "
        f"{fmt.digits(seen['in_flight'])} requests in flight."
    )
    title = f"{paint('Serving', 'bold')}, {seen['num_requests']:,} requests, {load_words(seen)}"
    table = columns(["  wait", *PERCENTILES], rows)
    return [title, *table, *(f"  {line}" for line in wrapped(text, indent="  ")), *failure_lines(seen)]


def predicted_waits(profile: Profile) -> dict[str, float]:
    """Return the seconds to the first token and for each further one, and tokens per second, of a prediction.

    Empty for a phase that serves nothing, or none beyond the first token.
    """
    run = profile.run
    reading_s, writing_s = (profile.step_time_s[stage] for stage in ("prefill", "decode"))
    if run.phase != "decode" or not writing_s:
        return {}
    times, written = micro_steps(run), answer_tokens(run)
    return {
        "ttft_s": reading_s / times,
        "time_per_output_token_s": writing_s / times / (written - 1),
        "written_tokens_per_s": times
        * run.micro_batch_size
        * run.data_parallel
        * written
        / (reading_s + writing_s),
    }


def predicted_line(profile: Profile) -> str:
    """Return what users of a service would wait for, in one line; empty where nothing is served."""
    waits = predicted_waits(profile)
    if not waits:
        return ""
    first, further = (fmt.duration(waits[name]) for name in ("ttft_s", "time_per_output_token_s"))
    rate = fmt.digits(waits["written_tokens_per_s"])
    return f"  {first} to the first token, {further} for each further one; {rate} tokens/s written"


def load_words(seen: Mapping[str, Any]) -> str:
    """Return the load in words."""
    if seen["asked_requests_per_s"]:
        return f"{fmt.digits(seen['asked_requests_per_s'])} a second, arriving by chance"
    users = seen["num_users"]
    return f"{users:,} user{'s' * (users != 1)} at a time"


def failure_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return how requests failed, the commonest way first."""
    failures = sorted(dict(seen.get("failures", {})).items(), key=lambda item: -item[1])[:MOST_FAILURES]
    return [
        f"  {line}" for why, times in failures for line in wrapped(f"{times:,} failed: {why}", indent="  ")
    ]


def load_lines(found: Sequence[tuple[Profile, Prediction]]) -> list[str]:
    """Return one row for each load of one endpoint, with the tokens per second that are predicted for it."""
    known = any(_predicted(prediction) for _, prediction in found)
    rows = []
    for measured, prediction in found:
        seen = measured.observations.get("serving", {})
        if measured.outcome != "completed":
            continue
        per_token = seen["time_per_output_token_s"]
        row = [
            f"  {seen['num_users']:,}",
            *(fmt.duration(seen["ttft_s"][p]) for p in ("p50", "p99")),
            *(fmt.duration(per_token[p]) if per_token else fmt.UNKNOWN for p in ("p50", "p99")),
            fmt.duration(seen["latency_s"]["p50"]),
            fmt.digits(seen["requests_per_s"]),
            fmt.digits(seen["written_tokens_per_s"]),
        ]
        rows.append([*row, *([_predicted(prediction) or fmt.UNKNOWN] if known else [])])
    headings = [
        "\n  users", "first token\np50", "\np99", "further token\np50", "\np99", "answer\np50",
        "\nrequests/s", "written\ntokens/s", *(["predicted\ntokens/s"] if known else []),
    ]  # fmt: skip
    return columns(headings, rows) if rows else []


def _predicted(prediction: Prediction) -> str:
    """Return the tokens written per second that are predicted; "" where none are."""
    profile = prediction.profile
    if profile is None or not profile.step_time_s.total:
        return ""
    run = profile.run
    new_tokens = run.max_new_tokens if run.phase == "decode" else 1
    return fmt.digits(profile.samples_per_s * new_tokens)


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
        [f"  {kind}", fmt.duration(seconds), fmt.percent(seconds / step_s)]
        for kind, seconds in [*list(kinds.items())[:MOST_ROWS], (BETWEEN, between_s)]
        if kind != BETWEEN or between_s > 0
    ]
    host = fmt.percent(seen["host_bound_fraction"])
    title = f"{paint('Kernels', 'bold')}, under the profiler; host-bound {host}"
    table = columns(["  kind", "a step", "share"], rows)
    return [title, *table, *_utilisation_lines(seen), *_place_lines(seen, step_s)]


def _utilisation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return achieved rates, weighted by time, and what they are of the peaks where these are known."""
    used = (seen.get("utilisation") or {}).get("all")
    if not used:
        return []

    def of_peak(name: str) -> str:
        return f" ({fmt.percent(used[name])} of the peak)" if name in used else ""

    compute = f"{fmt.si(used['flops_per_s'])}FLOP/s{of_peak('compute_fraction')}"
    memory = f"{fmt.size(used['memory_bytes_per_s'])}/s{of_peak('memory_fraction')}"
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
            *(
                f"  {place[0]}",
                *place[1:],
                fmt.duration(seconds),
                fmt.percent(seconds / step_s),
            ),
            f"{fmt.si(flops / seconds)}FLOP/s" if flops else fmt.UNKNOWN,
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
            f"{one['imbalance_ratio']:.2f}" if "imbalance_ratio" in one else fmt.UNKNOWN,
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
        f"{fmt.percent(one['dropped_fraction'])} at {one['capacity_factor']:g}x"
        for one in capacity["factors"]
    )
    text = (
        f"On average the fullest has {mean['imbalance_ratio']:.2f} times the mean, variance "
        f"{fmt.digits(mean['variance_population'])} (sample {fmt.digits(mean['variance_sample'])}). "
        f"Capped at the mean times a factor, tokens dropped: {dropped}. Padded to the fullest, "
        f"{capacity['padded_to_fullest_rows_ratio']:.2f} times the rows."
    )
    return [f"  {line}" for line in wrapped(text, indent="    ")]


def energy_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the joules of a step and who counted them."""
    joules, steps = seen.get("energy_j"), seen.get("steps") or 1
    if joules is None:
        return [f"{paint('Energy', 'bold')}  not measured: {seen.get('note') or 'no meter on this machine'}"]
    return [f"{paint('Energy', 'bold')}  {fmt.digits(joules / steps)} J a step ({seen['source']})"]


def evaluation_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return the accuracy before tuning and after each epoch."""
    epochs = seen.get("epochs") or ()
    if not epochs:
        return []
    choices = {name: words for name, words in CHOICES.items() if name in epochs[0]}
    rows = [
        [
            f"  {epoch['epoch']}",
            fmt.percent(epoch["exact_match_fraction"]),
            *(fmt.percent(epoch[name]) for name in choices),
            fmt.UNKNOWN if epoch.get("loss") is None else f"{epoch['loss']:.3f}",
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
    details = [f"{name} {fmt.digits(value, 4)}" for name, value in seen.get("details", {}).items()]
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
        f"{name.removesuffix('_fraction').replace('_', ' ')} {fmt.percent(value)}"
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
