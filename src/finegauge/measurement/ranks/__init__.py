"""Runs on several processes of this machine."""
