"""Token lengths: data sets read and tokenised, packed and batched as a framework would do it."""
