"""An Estimator whose memory and time are known in closed form, so that plans can be checked by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field

from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run

BASE = {"model": "llama-3-8b", "method": "lora", "gpu": "A40"}


def run(**fields: object) -> Run:
    """Return a run on an A40 with `fields`."""
    return Run(**{**BASE, **fields})  # type: ignore[arg-type]


@dataclass
class Fake:
    """Memory = fixed + `growth(sequences x length)`; time = 1 s + 1 ms per token; 100 W."""

    capacity_bytes: float = 1000.0
    fixed_bytes: float = 100.0
    growth: Callable[[int], float] = float
    knows_memory: bool = True
    asked: list[Run] = field(default_factory=list)

    def __call__(self, run: Run) -> Profile:
        """Return one step of `run`."""
        self.asked.append(run)
        tokens = run.micro_batch_size * run.seq_len
        needed = self.fixed_bytes + self.growth(tokens)
        step_s = {"forward": 0.25 + 0.0003 * tokens, "backward": 0.75 + 0.0007 * tokens}
        return Profile(
            run=run,
            source=Source(kind="predicted", name="fake"),
            outcome="completed" if needed <= self.capacity_bytes else "out_of_memory",
            device_memory_bytes=Breakdown(
                {
                    ("weights", "model"): self.fixed_bytes / 2,
                    ("gradients",): self.fixed_bytes / 4,
                    ("optimizer", "states"): self.fixed_bytes / 4,
                    ("activations",): needed - self.fixed_bytes,
                }
                if self.knows_memory
                else {}
            ),
            step_time_s=Breakdown.of(**step_s),
            step_energy_j=Breakdown.of(steps=100.0 * sum(step_s.values())),
            step_tokens=tokens * run.gradient_accumulation_steps,
            step_sequences=run.micro_batch_size * run.gradient_accumulation_steps,
            capacity_bytes=self.capacity_bytes,
        )
