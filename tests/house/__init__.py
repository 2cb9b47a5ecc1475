"""The rules of the house (docs/decisions, CONTRIBUTING.md), kept by tests."""
