"""The seed paper's runs (Xia et al. 2024) on four GPUs, dense and sparse, each at its largest micro-batch."""

from pathlib import Path

import finegauge
from finegauge.render import number_format
from finegauge.render.report import Table
from finegauge.render.terminal import table_lines

MIXTRAL = {"commonsense_15k": "mixtral_qlora_commonsense.yaml", "math_14k": "mixtral_qlora_math.yaml"}
BLACKMAMBA = dict.fromkeys(MIXTRAL, "blackmamba_full.yaml")
EXPERTS = {"dense": "num_experts_per_tok=all", "sparse": "num_experts_per_tok=2"}
STAGES = ["forward", "recompute", "backward", "optimizer"]
PER_STAGE = [f"s/step\n{stage}" for stage in STAGES]
HEADS = ["\nexperts", "\nGPU", "max\nbatch", *PER_STAGE, "\nqueries/s", "\ntime", "paper's\nCUDO $"]


def row(run: finegauge.Run) -> list[str]:
    """Return the largest micro-batch, its step by stage, and the bill of the whole run."""
    most = finegauge.max_micro_batch_size(run)
    if most.profile is None:
        return [str(run.gpu), "0", *["-"] * (len(HEADS) - 1)]
    step, bill = most.profile.step_time_s, finegauge.quote(run, most.profile)
    usd = [offer.on_demand_usd for offer in bill.offers if offer.tier == "seed-paper"] or [None]
    usd += [bill.cheapest_on_demand.on_demand_usd if bill.cheapest_on_demand else None]
    stages = [number_format.digits(step[stage]) if step[stage] else "-" for stage in STAGES]
    rates = [number_format.digits(most.profile.samples_per_s), number_format.hours(bill.wall_s)]
    bills = [*map(number_format.dollars, usd), number_format.kwh(bill.wall_energy_j)]
    return [str(run.gpu), str(most.value), *stages, *rates, *bills]


for files in (MIXTRAL, BLACKMAMBA):
    for dataset, name in files.items():
        rows = []
        for mode, experts in EXPERTS.items():
            run = finegauge.read(Path(__file__).parent / name, [f"dataset={dataset}", experts])
            rows += [[mode, *row(run.replace(gpu=gpu))] for gpu in ("A40", "A100-40GB", "A100-80GB", "H100")]
        print(f"\n{run.model}, {run.method}, {dataset}, {run.epochs:g} epochs ({name})")
        table = Table("", (*HEADS, "cheapest\n$ now", "kWh\nwall"), tuple(map(tuple, rows)), 2)
        print("\n".join(table_lines(table)))
