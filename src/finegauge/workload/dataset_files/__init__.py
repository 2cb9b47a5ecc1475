"""Data sets of texts on disk: read as a stream, rendered as training does, and counted in tokens."""
