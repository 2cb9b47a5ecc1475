"""One rank: `python -m torch.distributed.run ... -m finegauge.measurement.ranks.worker FOLDER`.

It reads FOLDER/trial.json and writes its profile to FOLDER/RANK.json; rank 0 adds a line to
FOLDER/progress for every step. torchrun starts its workers in sessions of their own, which no signal
to the trial's group reaches: so the kernel is asked to kill this one when torchrun is gone.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from finegauge.documents import write_whole
from finegauge.measurement.process import GROUP, die_with_parent
from finegauge.progress import Progress


def main() -> None:
    """Measure as the rank that torchrun says, and exit with 1 where that brought no data."""
    die_with_parent()
    group = os.environ.get(GROUP)
    if group is not None and os.getpgid(os.getppid()) != int(group):
        os._exit(1)  # torchrun is gone already
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    trial = json.loads((folder / "trial.json").read_text("utf-8"))
    from finegauge.measurement.ranks.rank import answer

    def heard(progress: Progress) -> None:
        if rank == 0:
            with open(folder / "progress", "a", encoding="utf-8") as told:
                told.write(json.dumps(progress[:3]) + "\n")

    profile = answer(trial, rank, heard)
    written: dict[str, Any] = {"profile": profile, "ended_s": time.time()}
    write_whole(str(folder / f"{rank}.json"), json.dumps(written).encode())
    sys.stderr.flush()
    os._exit(0 if profile["outcome"] == "completed" else 1)  # nothing to wait for: no peer, no library


if __name__ == "__main__":
    main()
