"""A read-only server by which assistants ask for estimates, plans and checks."""
