"""What to do: the largest batch that fits, the bill of a whole run, the best plan."""
