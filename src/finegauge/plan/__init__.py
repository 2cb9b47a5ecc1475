"""What to do about it: the largest batch that fits, what the run will cost, the best way to do it."""
