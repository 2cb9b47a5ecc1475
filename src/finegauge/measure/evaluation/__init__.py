"""How good the model is: exact match, multiple choice, tasks of lm-evaluation-harness."""
