"""From the transformers class of a model to a document from which any run of it is predicted."""
