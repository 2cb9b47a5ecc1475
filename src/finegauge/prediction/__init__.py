"""Predictions from first principles: memory, time and energy of a run."""
