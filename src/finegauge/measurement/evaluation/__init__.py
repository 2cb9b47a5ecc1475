"""Accuracy before, during and after tuning."""
