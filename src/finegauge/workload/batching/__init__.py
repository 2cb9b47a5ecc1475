"""What a framework makes of a data set's samples: rows, batches, steps, exactly as it would."""
