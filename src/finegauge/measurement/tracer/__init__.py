"""Traces of transformers classes, run on shapes alone."""
