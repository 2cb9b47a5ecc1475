"""Our operator graph held against the real code of transformers, traced on shapes."""
