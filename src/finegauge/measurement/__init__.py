"""Measurements with the real code, traced or timed; the home of torch."""
