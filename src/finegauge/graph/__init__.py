"""The operators of one rank: what a model is made of, and what each part computes, moves and keeps."""
