"""What to do about it: the largest batch that fits, and what the run will cost."""
