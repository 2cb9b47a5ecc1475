"""The home of torch: what real code does, traced or timed.

Nothing here is imported until a command needs it. It takes the extra:
pip install 'finegauge[measure]'.
"""
