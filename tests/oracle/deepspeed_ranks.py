"""What DeepSpeed sends in a step: counted anew by `python -m tests.oracle.deepspeed_ranks STAGE [STEPS]`.

DeepSpeed is no dependency of ours (pip install deepspeed); what this printed is kept in `COUNTED`, and
`test_collectives` holds our messages against it. Gradients are reduced in bf16.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from finegauge.run.run import Run
from tests.on_disk import new_folder
from tests.oracle.counting_group import Counts, counted, rank_of
from tests.oracle.real_ranks import tiny, tokens_of
from tests.oracle.real_step import real_model

RANKS = 8
NOTHING_KEPT = {
    "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
}  # fmt: skip
# deepspeed 0.19.8, torch 2.13.0, 2026-11-21: (messages, bytes) by kind, for (stage, micro-batches)
COUNTED: dict[tuple[int, int], Counts] = {
    (1, 1): {"all_gather": (1.0, 287616.0), "all_reduce": (1.0, 287616.0)},
    (1, 2): {"all_gather": (1.0, 287616.0), "all_reduce": (1.0, 287616.0)},
    (2, 1): {"all_gather": (1.0, 287616.0), "all_reduce": (1.0, 287616.0)},
    (2, 2): {"all_gather": (1.0, 287616.0), "all_reduce": (2.0, 575232.0)},
    (3, 1): {"all_gather": (1.0, 287616.0), "reduce_scatter": (1.0, 287616.0)},
    (3, 2): {"all_gather": (2.0, 575232.0), "reduce_scatter": (2.0, 575232.0)},
}
COUNTED_WITHOUT_KEEPING: Counts = {"all_gather": (60.0, 575232.0), "reduce_scatter": (1.0, 287616.0)}


def zero_run(folder: Path, stage: int, steps: int) -> Run:
    """Return the run that DeepSpeed is given."""
    return tiny(
        folder,
        num_gpus=RANKS,
        sharding=f"zero{stage}",
        gradient_accumulation_steps=steps,
        weights_dtype="bf16",
    )


def main(stage: int, steps: int, kept: bool) -> Counts:
    """Return what a step of DeepSpeed sends on one of eight ranks."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    run = zero_run(new_folder(), stage, steps)
    zero: dict[str, Any] = {"stage": stage, **({} if kept else NOTHING_KEPT)}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    config = {
        "train_micro_batch_size_per_gpu": run.micro_batch_size, "gradient_accumulation_steps": steps,
        "bf16": {"enabled": True}, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }  # fmt: skip
    with rank_of(RANKS):
        import deepspeed  # type: ignore[import-not-found,import-untyped]

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
        model = real_model(run)
        engine = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
        )[0]
        tokens = tokens_of(run)

        def step() -> None:
            for _ in range(steps):
                engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                engine.step()

        return counted(step)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, len(sys.argv) < 4)))
