"""Files that people already have, read as a Run: FineGauge's own, LLaMA-Factory's, config.json."""

from finegauge.workload.readers.reading import read

__all__ = ["read"]
