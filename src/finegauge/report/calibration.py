"""What `finegauge calibrate` prints: constants before and after, and how far sources left out are off."""

from typing import Any

from finegauge.report.figures import UNKNOWN, digits
from finegauge.report.terminal import columns, paint, wrapped


def calibration_lines(content: dict[str, Any], path: str | None) -> list[str]:
    """Return a fitted calibration, as `calibrate.document` writes it, for the terminal."""
    fitted = f"{content['num_constants']} constants fitted to {content['num_rows']} rows"
    low, high = (f"{100 * (ratio - 1):+.0f} %" for ratio in content["time_interval"])
    constants = [
        [name, entry["meaning"], digits(entry["before"]), digits(entry["value"])]
        for name, entry in content["constants"].items()
    ]
    sources = [
        [
            one["source"],
            str(one["num_rows"]),
            _percent(one["left_out_median_error"]),
            _percent(one["left_out_bias"]),
        ]
        for one in content["sources"]
    ]
    known = any(one["left_out_bias"] is not None for one in content["sources"])
    why = "of sources left out, all weighing alike" if known else "as before: too few sources to tell anew"
    use = f"FINEGAUGE_CALIBRATION={path} finegauge estimate RUN" if path else "add -o FILE to keep it"
    return [
        paint(f"{content['name']}: {fitted}", "bold"),
        "",
        *columns(("constant", "meaning", "before", "after"), constants, left=2, indent="  "),
        "",
        *columns(("source", "rows", "left out: median |error|", "bias"), sources, indent="  "),
        "",
        *wrapped(
            f"A time not yet measured lies {low} to {high} from its prediction "
            f"(10th to 90th percentile {why}).",
            indent="  ",
        ),
        paint(f"  {use}", "dim"),
    ]


def _percent(fraction: float | None) -> str:
    """Return a signed share, or a dash where too few sources are known."""
    return UNKNOWN if fraction is None else f"{100 * fraction:+.1f} %"
