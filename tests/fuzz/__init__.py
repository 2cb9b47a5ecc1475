"""Damaged and hostile inputs, over every reader and command: `python -m tests.fuzz --num 20000 --seed 1`."""
