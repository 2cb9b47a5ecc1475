"""Clocks, meters and probes that watch a measured step."""
