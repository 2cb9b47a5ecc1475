"""A callback for the trainers of transformers and TRL."""
