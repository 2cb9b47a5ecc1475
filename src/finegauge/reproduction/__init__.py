"""The seed paper regenerated from its published figures, ours beside theirs."""
