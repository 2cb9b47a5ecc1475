"""DeepSpeed's JSON with the training file of transformers' Trainer (as TRL takes it) that names it.

The JSON states batch and number format in full, so that it serves other scripts too.
"""

from finegauge.formats import launcher_files, trl
from finegauge.formats.sheet import DEEPSPEED, Sheet
from finegauge.run.run import Run

FORMAT = trl.FORMAT
FILE = "train.yaml"
_AS_ZERO = {"fsdp": "zero3", "fsdp_shard_grad_op": "zero2", "hybrid": "zero3"}


def sheet(run: Run) -> Sheet:
    """Return the files for `run` under DeepSpeed; FSDP becomes the ZeRO stage that shards the same."""
    sharded = run.replace(sharding=_AS_ZERO[run.sharding]) if run.sharding in _AS_ZERO else run
    keys = {**trl.training_keys(sharded), "deepspeed": DEEPSPEED}
    program = f"-m trl.scripts.{trl.COMMANDS[run.phase]} --config {FILE}"
    json = launcher_files.deepspeed(sharded, explicit=True)
    packages = " ".join(dict.fromkeys([*trl.packages(sharded).split(), "deepspeed"]))
    return Sheet(FILE, keys, launcher_files.torchrun(run, program), packages, {DEEPSPEED: json})
