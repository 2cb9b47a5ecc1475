"""Profiles on disk: one line each, appended, crash-safe; a torn line is set aside, never fatal."""
