"""The physical constants of `predict`, fitted to measurements, with the intervals they earn."""
