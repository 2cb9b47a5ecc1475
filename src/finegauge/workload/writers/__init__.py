"""The other way round: a Run as the files of the framework that is to run it."""

from finegauge.workload.writers.writing import FRAMEWORKS, Written, as_written, known_name, write

__all__ = ["FRAMEWORKS", "Written", "as_written", "known_name", "write"]
