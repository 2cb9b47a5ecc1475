"""The operators of one rank: what each part of a model computes, moves and keeps."""
