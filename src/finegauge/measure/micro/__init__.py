"""What single operators of this machine reach, swept over the shapes of a run."""
