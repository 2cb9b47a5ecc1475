"""Micro-benchmarks: what single operators of this machine reach."""
