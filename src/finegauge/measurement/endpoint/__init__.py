"""Endpoint."""
