"""Campaigns: many runs, predicted or measured, resumable."""
