"""Measurements of a server from outside."""
