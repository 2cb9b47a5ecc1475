"""Real models: the class of a run built with weights, quantised, adapted, checkpointed; its optimizer."""

from finegauge.measure.models.build import autocasting, subject_of

__all__ = ["autocasting", "subject_of"]
