"""`finegauge measure --endpoint`: the options of a server, and one measurement for each number of users."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from finegauge.measure.options import Options
    from finegauge.measure.process import Heard
    from finegauge.plan.here import Prediction
    from finegauge.profile import Profile
    from finegauge.workload.run import Run

MOST_USERS = 10_000
NEED_ENDPOINT = {
    "endpoint_api": "--endpoint-api", "endpoint_model": "--endpoint-model", "concurrency": "--concurrency",
    "num_requests": "--requests", "requests_per_s": "--rate", "request_timeout_s": "--request-timeout",
    "api_key_variable": "--api-key-variable",
}  # fmt: skip

Command = Callable[..., Any]


def endpoint_options(command: Command) -> Command:
    """Add the options of a server to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def stated(asked: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Take the options of a server out of `asked`; return those that were stated, and the numbers of users.

    Raises: click.UsageError where a server's options are stated without a server.
    """
    endpoint = asked.pop("endpoint")
    found = {name: asked.pop(name) for name in NEED_ENDPOINT}
    found = {name: value for name, value in found.items() if value is not None}
    if not endpoint and found:
        raise click.UsageError(f"{NEED_ENDPOINT[next(iter(found))]} is about a server: add --endpoint URL.")
    users = found.pop("concurrency", ())
    return ({"endpoint": endpoint, **found} if endpoint else {}), users


def measure_each(
    run: "Run", users: tuple[int, ...], options: "Options", *, heard: "Heard | None", store: str | None
) -> list[tuple["Profile", "Prediction"]]:
    """Return (measured, predicted) for every number of users, or for the run's `micro_batch_size` of them."""
    from finegauge.measure.measure import measure
    from finegauge.plan.here import prediction_elsewhere
    from finegauge.workload.run import FROM_COMMAND_LINE

    found = []
    for run_of_users in [run.replace(FROM_COMMAND_LINE, micro_batch_size=n) for n in users] or [run]:
        measured = measure(run_of_users, options, heard=heard, store=store)
        found.append((measured, prediction_elsewhere(_as_met(run_of_users, measured, options))))
        if measured.outcome != "completed":
            break  # more users do not help
    return found


def _as_met(run: "Run", measured: "Profile", options: "Options") -> "Run":
    """Return the run to predict: requests that arrive by chance make as many users as were in flight."""
    if not options.requests_per_s or measured.outcome != "completed":
        return run
    return run.replace(micro_batch_size=max(1, round(measured.observations["serving"]["in_flight"])))


def _numbers(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Return the numbers of users that "1,8,32" states."""
    del ctx, option
    if value is None:
        return None
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words or not all(w.isdecimal() and w.isascii() and 1 <= int(w[:9]) <= MOST_USERS for w in words):
        raise click.BadParameter(f"'{value}' should be numbers of users from 1 to {MOST_USERS:,}: 1,8,32.")
    return tuple(dict.fromkeys(map(int, words)))


OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--endpoint", metavar="URL", default="", help="Measure an OpenAI-compatible server."),
    click.option("--endpoint-api", type=click.Choice(["completions", "chat"]), help="[default: completions]"),
    click.option("--endpoint-model", metavar="NAME", help="As the server calls it, where it has several."),
    click.option(
        "--concurrency", metavar="N,N", callback=_numbers,
        help="Users at a time, one measurement each.  [default: micro_batch_size]",
    ),
    click.option(
        "--requests", "num_requests", type=click.IntRange(1, 10_000_000),
        help="Measured requests.  [default: --steps of every user]",
    ),
    click.option(
        "--rate", "requests_per_s", type=click.FloatRange(0, 1e6, min_open=True),
        help="Requests a second arriving by chance, instead of users.",
    ),
    click.option(
        "--request-timeout", "request_timeout_s", type=click.FloatRange(0, 1e6),
        help="Seconds of one request; 0: none.  [default: 600]",
    ),
    click.option("--api-key-variable", metavar="NAME", help="Environment variable with the server's key."),
)  # fmt: skip
