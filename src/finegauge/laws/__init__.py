"""Closed-form laws fitted to measurements: the seed paper's equations and the affine step-time law.

`forms` holds the equations, `table` reads a sweep, `fit` finds the constants with their intervals,
`law` is what a fit leaves behind (a JSON file), `shelf` keeps laws by name, and `estimator` lets a
law speak about a Run, with everything it does not say taken from another Estimator.
"""
