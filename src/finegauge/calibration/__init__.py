"""The physical constants of predictions, fitted to measurements, with their intervals."""
