"""Imported by the server of processes: all that answers need, loaded and used once.

A process that is forked after that answers its first question as fast as its last.
"""

import os

from finegauge.web.jobs import warm

os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process is one worker; a fork must find no threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


warm()
