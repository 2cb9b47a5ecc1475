"""One bar of memory against a GPU, and one of a step by stage, as plain data for the templates' macros."""

from collections.abc import Iterable
from typing import NamedTuple

from finegauge.profile import Interval, Profile
from finegauge.render import number_format as fmt
from finegauge.units import GIB, gib

NUM_SHADES = 8
OWN_SHADES = {  # so that a kind has one colour wherever it is drawn; see drawing.CYCLE
    "weights": 1, "gradients": 3, "optimizer": 2, "activations": 4, "logits": 5, "workspace": 8, "slack": 7,
    "context": 6, "NCCL": 6, "KV cache": 3, "forward": 1, "recompute": 5, "backward": 3, "communication": 6,
    "generation": 4, "scoring": 7, "prefill": 1, "decode": 4, "data": 7, "other": 8,
}  # fmt: skip


class BarPart(NamedTuple):
    """One piece of a bar."""

    name: str
    amount: str
    start_fraction: float  # of the bar's whole width
    width_fraction: float
    shade: int  # 1 to 8, the class "fg-N" of figures.css


class Bar(NamedTuple):
    """One bar: `macros.html` draws it by `bar`, `legend` or `bar_with_legend`."""

    says: str  # the whole of it in one sentence, for who does not see it
    parts: tuple[BarPart, ...]
    limit_fraction: float | None = None  # where the capacity stands
    limit: str | None = None
    interval_fractions: tuple[float, float] | None = None  # the 10th and 90th percentile of the total


class Table(NamedTuple):
    """Rows of texts: `macros.html` draws it by `table`; the first column heads its row."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int = 1  # the first columns, set flush left
    ends_in_text: bool = False  # the last column too


def memory_bar(profile: Profile) -> Bar:
    """Return what has to fit by kind, against what the GPU has, with its interval."""
    needed, room = profile.device_memory_bytes, profile.capacity_bytes
    interval = profile.source.memory_interval
    ends = (needed.total, needed.total) if interval is None else interval.of(needed.total)
    whole = 1.02 * max(room, ends[1], needed.total) or 1.0
    on = f" on {profile.run.gpu}" if profile.run.gpu else ""
    limit = f"{gib(room)} usable{on}" if room else None
    return Bar(
        says=f"{fmt.gib_interval(needed.total, interval)} needed" + (f" of {limit}." if limit else "."),
        parts=_parts(((path[0], value, _amount(value)) for path, value in needed.at(1).parts.items()), whole),
        limit_fraction=room / whole if room else None,
        limit=limit,
        interval_fractions=_fractions(needed.total, interval, whole),
    )


def stage_bar(profile: Profile) -> Bar:
    """Return the seconds of one step by stage, with the interval of the whole."""
    step, interval = profile.step_time_s, profile.source.time_interval
    whole = (step.total if interval is None else interval.of(step.total)[1]) * 1.02 or 1.0
    pieces = ((path[0], value, fmt.duration(value)) for path, value in step.at(1).parts.items())
    return Bar(
        says=f"One step takes {fmt.duration_interval(step.total, interval)}.",
        parts=_parts(pieces, whole),
        interval_fractions=_fractions(step.total, interval, whole),
    )


def _amount(num_bytes: float) -> str:
    """Return GiB, and of little the unit that does not round it to nothing."""
    return gib(num_bytes) if num_bytes >= 0.1 * GIB else fmt.size(num_bytes)


def _fractions(total: float, interval: Interval | None, whole: float) -> tuple[float, float] | None:
    """Return where the percentiles of `total` stand."""
    if interval is None:
        return None
    low, high = interval.of(total)
    return low / whole, high / whole


def _parts(pieces: Iterable[tuple[str, float, str]], whole: float) -> tuple[BarPart, ...]:
    """Return the pieces of (name, amount, its text) side by side, those of nothing left out."""
    parts, start = [], 0.0
    for number, (name, amount, text) in enumerate(piece for piece in pieces if piece[1] > 0):
        shade = OWN_SHADES.get(name, number % NUM_SHADES + 1)
        parts.append(BarPart(name, text, start / whole, amount / whole, shade))
        start += amount
    return tuple(parts)
