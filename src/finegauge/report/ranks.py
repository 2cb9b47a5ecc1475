"""What `finegauge measure` prints of several processes: what each holds and sends, and what was predicted."""

from typing import TYPE_CHECKING

from finegauge.errors import FineGaugeError
from finegauge.profile import Profile
from finegauge.report import figures
from finegauge.report.terminal import columns, paint

if TYPE_CHECKING:
    from finegauge.predict.exchange import Volume
    from finegauge.workload.run import Run

KINDS = ("weights", "gradients", "optimizer")


def rank_lines(measured: Profile) -> list[str]:
    """Return a table of ranks and one of messages; nothing of a run in one process."""
    ranks = measured.observations.get("ranks")
    if not ranks:
        return []
    held = predicted_held(measured.run)
    rows = [
        [
            f"  {rank['rank']}",
            figures.duration(rank["step_time_s"]),
            *(figures.size(rank[f"{kind}_bytes"]) for kind in KINDS),
            figures.size(rank["peak_memory_bytes"]) if rank["peak_memory_bytes"] else figures.UNKNOWN,
        ]
        for rank in ranks
    ]
    if held:
        rows.append(["  predicted", "", *map(figures.size, held), ""])
    table = columns(["  rank", "step", *KINDS, "peak"], rows)
    return [f"{paint('Ranks', 'bold')}, what each holds for good", *table, "", *_message_lines(measured)]


def _message_lines(measured: Profile) -> list[str]:
    """Return what the first rank sent in a step, by kind, beside what was predicted."""
    sent = {one["kind"]: one for one in measured.observations["ranks"][0]["collectives"]}
    predicted: dict[str, tuple[float, float]] = {}
    for volume in _volumes(measured.run):
        times, size = predicted.get(volume.kind, (0.0, 0.0))
        predicted[volume.kind] = times + volume.num_per_step, size + volume.bytes_per_step
    rows = []
    for kind in dict.fromkeys([*sent, *predicted]):
        ours, theirs = sent.get(kind), predicted.get(kind)
        rows.append(
            [
                f"  {kind.replace('_', '-')}",
                f"{ours['messages']}" if ours else figures.UNKNOWN,
                figures.size(ours["bytes"]) if ours else figures.UNKNOWN,
                f"{theirs[0]:.0f}" if theirs else figures.UNKNOWN,
                figures.size(theirs[1]) if theirs else figures.UNKNOWN,
                figures.duration(ours["seconds"]) if ours else figures.UNKNOWN,
            ]
        )
    titles = ["  kind", "messages", "bytes", "predicted", "bytes", "seconds"]
    title = f"{paint('Exchanged', 'bold')} by a rank in one step, each message waited for on its own"
    return [title, *columns(titles, rows)]


def predicted_held(run: "Run") -> tuple[float, float, float] | None:
    """Return the predicted bytes of weights, gradients and optimizer states of what a rank trains."""
    from finegauge.graph.step_flops import value_run
    from finegauge.predict.sharding import gradients_left, share_of

    trained = (run, value_run(run)) if run.phase == "ppo" else (run,)
    try:
        models = [share_of(one).graph.weights for one in trained]
    except FineGaugeError:
        return None
    return (
        sum(weights.base_bytes + weights.adapter_bytes for weights in models),
        sum(weights.gradient_bytes for weights in models) * gradients_left(run),
        sum(weights.optimizer_bytes for weights in models),
    )


def _volumes(run: "Run") -> "list[Volume]":
    """Return what is predicted to be sent; nothing where nothing is predicted."""
    from finegauge.predict.exchange import volumes

    try:
        return volumes(run)
    except FineGaugeError:
        return []
