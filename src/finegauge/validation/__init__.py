"""Prediction errors: measurement tables held against an Estimator."""
