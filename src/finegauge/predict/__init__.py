"""Predictions from first principles: memory, time and energy of a run that has not happened."""

from finegauge.predict.predictor import predict

__all__ = ["predict"]
