"""Which machine the run is asked about, where it stands, and what surrounds the steps."""

from finegauge.workload.field import Check, number, text, whole

CHECKS: dict[str, Check] = {
    "gpu": text,
    "provider": text,
    "region": text,
    "startup_s": number(0.0, 1e7, "s"),
    "saves_per_epoch": number(0.0, 1e6),
    "eval_samples": whole(0, 10**10),
}
