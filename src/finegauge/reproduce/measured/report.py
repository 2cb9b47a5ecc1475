"""All findings of the paper that a small machine can measure again, as one reproduction."""

from collections.abc import Mapping

from finegauge.measure.options import Options
from finegauge.profile import Profile
from finegauge.reproduce.item import Item, Reproduction
from finegauge.reproduce.measured import learning_findings, time_findings
from finegauge.reproduce.measured.held import Held, percent
from finegauge.reproduce.measured.trials import SEQ_LEN, Told, Trial, measured, waited_fraction
from finegauge.reproduce.measured.tuning import Tunings, tunings

TITLE = "The findings of Xia et al. 2024, measured again on this machine at small scale"
BUSY_FROM = 0.05  # of the time, spent waiting for a processor
PAPER = "paper: arXiv 2408.04693"
MACHINE = ("device", "cores", "threads", "torch", "transformers", "date")


def measure_findings(options: Options, *, told: Told | None = None, store: str | None = None) -> Reproduction:
    """Return every finding with the paper's figure, this machine's, and whether it holds.

    Args:
        options: Device, threads and seed.
        told: Told what is being measured.
        store: A journal that keeps the profiles of the trials.
    Raises: UnsupportedError without PyTorch, or where a trial brings no data.
    """
    profiles = measured(options, told=told, store=store)
    return findings_of(profiles, tunings(options, told=told))


def findings_of(profiles: Mapping[Trial, Profile], tuned: Tunings) -> Reproduction:
    """Return the reproduction that measured steps and tunings make."""
    held = [
        *(judge(profiles) for judge in (
            time_findings.stages, time_findings.layers, time_findings.modes, time_findings.throughput,
            time_findings.optimizer,
        )),
        learning_findings.experts(tuned),
        learning_findings.accuracy(tuned),
    ]  # fmt: skip
    machine = next(iter(profiles.values())).fingerprint
    known = [f"{name}: {machine[name]}" for name in MACHINE if machine.get(name)]
    return Reproduction(
        TITLE,
        (PAPER, ", ".join(known)),
        (_overview(held), *(one.item for one in held)),
        (),
        (
            f"{sum(one.holds for one in held)} of {len(held)} findings hold here.",
            f"Steps: fp32, {SEQ_LEN} random tokens to a sequence, each run in a process of its own, the "
            "median step after a warm-up. Models have the paper's structure, eight experts to a layer, and "
            "millions of parameters, not billions: figures show the same effects, not the same sizes.",
            *_busy(profiles),
        ),
    )


def _busy(profiles: Mapping[Trial, Profile]) -> tuple[str, ...]:
    """Say so where other programs took much of the machine."""
    waited = max(map(waited_fraction, profiles.values()))
    if waited < BUSY_FROM:
        return ()
    return (
        f"The machine was busy: for up to {percent(waited)} of the time the steps waited for a processor. "
        "That time is taken out of the totals, but blurs them; measure again on a quiet machine.",
    )


def _overview(held: list[Held]) -> Item:
    """Return the findings in one table."""
    return Item(
        key="findings",
        title="Findings",
        headings=("finding", "paper", "here", "holds"),
        rows=tuple(one.row for one in held),
        num_text_columns=4,
    )
