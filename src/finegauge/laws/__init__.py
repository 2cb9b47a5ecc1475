"""Closed-form laws fitted to measurements: the seed paper's equations and the affine step-time law."""
