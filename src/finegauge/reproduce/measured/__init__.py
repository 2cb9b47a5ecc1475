"""The seed paper's qualitative findings, measured again on this machine at small scale.

`trials` takes steps of small models of the paper's two kinds, `tuning` fine-tunes one on
arithmetic, `findings` holds both against what the paper says, `report` puts them together.
"""
