"""What a step spends most of its time on, in one sentence."""

from finegauge.profile import Profile

HOST_BOUND_FRACTION = 0.35  # above it, launching kernels is the first thing to say
PART_NAMES = {
    "moe": "the experts",
    "mlp": "the feed-forward layers",
    "attention": "attention",
    "mamba": "the Mamba mixers",
    "head": "the output head",
    "loss": "the loss",
}


def bottleneck(profile: Profile) -> str:
    """Return one sentence: what most of the step's time goes to, and why."""
    total = profile.step_time_s.total
    if not total:
        return "No time is known for this step."
    host = profile.host_bound_fraction
    if host > HOST_BOUND_FRACTION:
        return (
            f"The host: {100 * host:.0f} % of the step the GPU waits for Python to launch kernels; "
            "a larger micro-batch is nearly free."
        )
    shares: dict[str, float] = {}
    for path, seconds in profile.step_time_s.parts.items():
        name = _name(path)
        shares[name] = shares.get(name, 0.0) + seconds / total
    name, share = max(shares.items(), key=lambda item: item[1])
    mfu = 100 * profile.mfu_fraction
    return f"{name[0].upper()}{name[1:]}: {100 * share:.0f} % of the step; MFU {mfu:.0f} %."


def _name(path: tuple[str, ...]) -> str:
    """Return what a user would call the part of the step at `path`."""
    if path[0] == "optimizer":
        return "the optimizer"
    if path[-1] == "dequantise":
        return "dequantising 4-bit weights"
    return PART_NAMES.get(path[1], path[1]) if len(path) > 1 else path[0]
