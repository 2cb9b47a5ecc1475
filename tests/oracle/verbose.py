"""Which of our operators and which traced modules disagree, for the worst cell of each row."""

import re
from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.table import Table

from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.prediction.memory import CUBLAS_DEFAULT_BYTES, live_set
from finegauge.run.run import Run
from tests.oracle.compare import PHASES, STAGES, Outcome, ours, relative_error, run_of, theirs

TOLERANCE = 1e-6
LARGEST_HELD = 14


def explain(outcomes: list[Outcome], console: Console, limit: int = 12) -> None:
    """Take apart the worst cell of every (model, method, checkpointing), at most `limit` of them."""
    worst: dict[tuple[str, ...], Outcome] = {}
    for outcome in outcomes:
        key = outcome.cell[:3]
        if outcome.errors and _badness(outcome) > max(TOLERANCE, _badness(worst.get(key))):
            worst[key] = outcome
    for outcome in sorted(worst.values(), key=_badness, reverse=True)[:limit]:
        _take_apart(outcome, console)


def _badness(outcome: Outcome | None) -> float:
    return max(map(abs, outcome.errors.values()), default=0.0) if outcome else 0.0


def _take_apart(outcome: Outcome, console: Console) -> None:
    run = run_of(outcome.cell)
    trace, real = theirs(run)
    mine = ours(run)
    console.rule(outcome.cell.name)
    for name, value in real.amounts.items():
        error = relative_error(mine.amounts[name], value)
        if abs(error) > TOLERANCE:
            console.print(
                f"  {name}: ours {mine.amounts[name]:,.0f}, theirs {value:,.0f} "
                f"({mine.amounts[name] - value:+,.0f}, {100 * error:+.3f} %)",
                highlight=False,
            )
    if mine.tensors != real.tensors:
        console.print(
            f"  tensors only ours {mine.tensors - real.tensors}, theirs {real.tensors - mine.tensors}"
        )
    if run.phase == "evaluate":
        return
    console.print(_modules(run, trace))
    console.print(_operators(run))
    _peaks(run, trace, real.amounts, mine.amounts, console)


def _modules(run: Run, trace: Any) -> Table:
    """Return what each traced module did, the same module of all layers added up, per token."""
    tokens = run.micro_batch_size * run.seq_len
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for (stage, module), count in trace.flops.items():
        if stage in STAGES:
            rows[_generic(module)][STAGES.index(stage)] += count / tokens
    for saved in trace.saved:
        rows[_generic(saved.module)][3] += saved.bytes / tokens
    return _table("transformers' modules, all layers, per token", rows)


def _operators(run: Run) -> Table:
    """Return what each of our operators says, by kind of layer, per token."""
    graph = build(run)
    extents = Extents.of(run.micro_batch_size, run.seq_len)
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    groups = [
        ("", 1, graph.embedding),
        *((g.kind, g.count, g.ops) for g in graph.layers),
        ("", 1, graph.head),
    ]
    for kind, count, ops in groups:
        for op in ops:
            at = extents.windowed(op.window)
            row = rows[" ".join((f"{kind} x{count}" if kind else "", "/".join(op.path)))]
            row[0] += count * op.forward.flops.at(at) / extents.tokens
            row[2] += count * op.backward.flops.at(at) / extents.tokens
            row[3] += count * op.saved_bytes.at(at) / extents.tokens
    return _table("our operators, all layers of a kind, per token", rows)


def _table(title: str, rows: dict[str, list[float]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("", *(f"{stage} FLOPs" for stage in STAGES), "saved bytes"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in rows.items():
        if any(values):
            table.add_row(name, *(f"{value:,.1f}" if value else "" for value in values))
    return table


def _peaks(run: Run, trace: Any, real: dict[str, float], mine: dict[str, float], console: Console) -> None:
    """Print what is alive at the peaks that disagree, on both sides."""
    phases = live_set(
        run, build(run), Extents.of(run.micro_batch_size, run.seq_len), CUBLAS_DEFAULT_BYTES
    ).phases
    for phase in PHASES:
        name = f"{phase} peak"
        if abs(relative_error(mine[name], real[name])) <= 0.001:
            continue
        console.print(
            f"  {name}: ours {mine[name]:,.0f}, theirs {real[name]:,.0f}; static {trace.static_bytes}"
        )
        console.print({"/".join(path): round(value) for path, value in phases[phase].parts.items()})
        for held in trace.alive_at_peak[phase][:LARGEST_HELD]:
            console.print(
                f"    {held.bytes:12,} {held.shape} {held.dtype} {held.op} {held.module}", highlight=False
            )


def _generic(module: str) -> str:
    """Return a module's path with the layer's number left out."""
    return re.sub(r"\.\d+\.", ".N.", module) or "(model)"
