"""Predictions from first principles: memory, time and energy of a run that has not happened."""

import sys
from types import ModuleType

from finegauge.predict.predictor import predict

__all__ = ["predict"]


class _Callable(ModuleType):
    """`finegauge.predict` is this package and the function of that name: calling it predicts."""

    __call__ = staticmethod(predict)


sys.modules[__name__].__class__ = _Callable
