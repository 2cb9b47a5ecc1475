"""The seed paper regenerated from its published figures, ours beside theirs.

`published` reads the figures, `runs` turns the paper's experiments into Runs, `sweeps` holds the
laws against its throughput series; `tables`, `characterisation` and `hardware` regenerate its
items, `findings` states where paper and artifact contradict themselves, `xia2024` is all of it.
"""
