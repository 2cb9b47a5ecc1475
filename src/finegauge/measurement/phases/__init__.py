"""One step of each phase: training, preference, reinforcement, generation."""
