"""How each phase of a model's life uses it: one file a phase, one `step` each."""

from finegauge.measure.phases.choice import phase_of

__all__ = ["phase_of"]
