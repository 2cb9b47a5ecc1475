"""Traces one training step of the real transformers class on shapes alone.

`trace_step(run)` builds the class of the run's model without weights and follows one
step: parameters by tensor, FLOPs by stage and module, what autograd keeps, live bytes by
phase. The oracle of the tests and `finegauge trace` rest on it.
"""

from finegauge.measure.trace.build import Built, build
from finegauge.measure.trace.step import StepTrace, trace_built, trace_step

__all__ = ["Built", "StepTrace", "build", "trace_built", "trace_step"]
