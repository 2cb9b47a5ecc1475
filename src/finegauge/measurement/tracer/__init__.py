"""Tracer."""
