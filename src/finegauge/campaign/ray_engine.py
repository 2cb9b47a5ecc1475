"""The engine of a Ray cluster: one task a trial, wherever there is room for it.

Nodes only measure. What they find flows back to the driver, which alone writes to the folder, so
that a trial that Ray runs again after the loss of a node still has one result. As many trials are
under way as the cluster has room for, and no more: what is not launched yet can still be pruned.
When the driver ends, by whatever means, Ray ends its tasks, and a task's end ends its trial.
"""

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, NamedTuple

from finegauge.campaign.axes import Cell
from finegauge.campaign.driver import Start
from finegauge.errors import FineGaugeError, InputError, UnsupportedError, shown
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure, without_result
from finegauge.profile import Profile
from finegauge.store.document import profile_document, profile_of, run_document, run_of

RETRIES = 3  # of a trial whose node or worker was lost
LOOK_EVERY_S = 1.0
CONNECT_S = 5.0
CANCEL_S = 10.0

Answer = tuple[str, Cell, Profile]
Node = Mapping[str, float]  # its resources, by Ray's names


class Need(NamedTuple):
    """What a trial takes of its node."""

    num_cpus: int
    num_gpus: int

    def times_on(self, node: Node) -> int:
        """Return how many such trials a node has room for."""
        times = int(node.get("CPU", 0.0) // self.num_cpus)
        return min(times, int(node.get("GPU", 0.0) // self.num_gpus)) if self.num_gpus else times

    def __str__(self) -> str:
        number, what = (self.num_gpus, "GPU") if self.num_gpus else (self.num_cpus, "CPU")
        return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Flight(NamedTuple):
    """A trial under way."""

    trial: str
    cell: Cell
    need: Need


class RayEngine:
    """Measures on a Ray cluster."""

    def __init__(self, address: str = "") -> None:
        """Name the cluster's address; "": that of RAY_ADDRESS, this machine's cluster, or a new one."""
        self.address = address
        self.flights: dict[Any, Flight] = {}  # by the reference of Ray's task

    def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[Answer]:
        """Yield (trial, cell, profile) as each ends; an interruption is passed on, and is an outcome.

        Raises: UnsupportedError without Ray; InputError where no cluster answers.
        """
        first = next(cells, None)
        if first is None:  # no cluster is needed
            return
        with _connected(self.address) as ray:
            try:
                yield from self._launch(ray, first, start)
                yield from self._work(ray, cells, start, first)
            except KeyboardInterrupt:
                self._cancel(ray)
                for flight in self.flights.values():
                    yield flight.trial, flight.cell, _without(flight.cell, "interrupted", "Ctrl-C")
                raise
            finally:
                self._cancel(ray)
                self.flights.clear()

    def _work(self, ray: Any, cells: Iterator[Cell], start: Start, last: Cell) -> Iterator[Answer]:
        more = True
        while more or self.flights:
            room = _room(last, _nodes(ray))
            while more and len(self.flights) < room:
                cell = next(cells, None)
                more = cell is not None
                if cell is not None:
                    last = cell
                    yield from self._launch(ray, cell, start)
            if self.flights:
                ended, _ = ray.wait(list(self.flights), num_returns=1, timeout=LOOK_EVERY_S)
                for reference in ended:
                    flight = self.flights.pop(reference)
                    yield flight.trial, flight.cell, _profile(ray, reference, flight.cell)
                yield from self._stranded(ray)

    def _launch(self, ray: Any, cell: Cell, start: Start) -> Iterator[Answer]:
        assert cell.run is not None
        trial, nodes = start(cell), _nodes(ray)
        need = _need(cell, nodes)
        if not any(need.times_on(node) for node in nodes):
            yield trial, cell, _without(cell, "unsupported", f"no node of the Ray cluster has {need}")
            return
        task = ray.remote(measured_on_node).options(
            num_cpus=need.num_cpus, num_gpus=need.num_gpus, max_retries=RETRIES
        )
        reference = task.remote(run_document(cell.run), _options(cell), os.getcwd())
        self.flights[reference] = Flight(trial, cell, need)

    def _stranded(self, ray: Any) -> Iterator[Answer]:
        """Yield the trials that no node can hold any longer, for Ray would wait for one for ever."""
        nodes = _nodes(ray)
        for reference, flight in list(self.flights.items()):
            if not any(flight.need.times_on(node) for node in nodes):
                ray.cancel(reference, force=True)
                del self.flights[reference]
                reason = f"the last node with {flight.need} was lost"
                yield flight.trial, flight.cell, _without(flight.cell, "failed", reason)

    def _cancel(self, ray: Any) -> None:
        for reference in self.flights:
            ray.cancel(reference, force=True)
        if self.flights:
            ray.wait(list(self.flights), num_returns=len(self.flights), timeout=CANCEL_S)


def measured_on_node(run: Mapping[str, Any], options: Options, folder: str) -> dict[str, Any]:
    """Measure a run's document on the node that this is called on, and return the profile's.

    `folder` is the driver's, from which paths of the run start; nodes share it, or have the same files there.
    """
    with suppress(OSError):
        os.chdir(folder)
    asked = run_of(run)
    try:
        return profile_document(measure(asked, options))
    except FineGaugeError as error:
        return profile_document(without_result(asked, "unsupported", str(error)))


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield Ray, connected to the cluster at `address`.

    Raises: UnsupportedError without Ray; InputError where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        import ray
    except ImportError:
        raise UnsupportedError("--engine ray needs Ray: pip install 'finegauge[ray]'.") from None
    if address:
        _reach(address)
    with redirect_stdout(sys.stderr):  # where Ray prints what befalls its nodes
        try:
            ray.init(address=address or None, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = shown(address) if address else "this machine"
            said = str(error).splitlines() or [type(error).__name__]
            raise InputError(f"No Ray cluster can be used at {where}: {said[0]}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Check that a server listens at `address`; Ray itself would try for minutes.

    Raises: InputError where none does, or it is no address.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--address {shown(address)} should be HOST:PORT, as 'ray start' prints it.")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"No Ray cluster answers at {shown(address)}: {error}.") from None


def _nodes(ray: Any) -> Sequence[Node]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _room(cell: Cell, nodes: Sequence[Node]) -> int:
    if _options(cell).endpoint:  # which they would share
        return 1
    need = _need(cell, nodes)
    return max(1, sum(need.times_on(node) for node in nodes))


def _need(cell: Cell, nodes: Sequence[Node]) -> Need:
    """Return what a trial takes: its GPUs; else the threads it asks for, or all of the smallest node."""
    assert cell.run is not None
    options = _options(cell)
    if options.device != "cpu":
        return Need(num_cpus=1, num_gpus=cell.run.num_gpus)
    if options.threads:
        return Need(num_cpus=options.threads * cell.run.num_gpus, num_gpus=0)
    return Need(num_cpus=max(1, int(min((node.get("CPU", 1.0) for node in nodes), default=1.0))), num_gpus=0)


def _options(cell: Cell) -> Options:
    return cell.options or Options()


def _profile(ray: Any, reference: Any, cell: Cell) -> Profile:
    try:
        return profile_of(ray.get(reference))
    except ray.exceptions.RayError as error:
        cause = str(getattr(error, "cause", "") or error).strip().splitlines() or [type(error).__name__]
        return _without(cell, "failed", f"the Ray cluster gave the trial up: {cause[0][:300]}")


def _without(cell: Cell, outcome: str, reason: str) -> Profile:
    assert cell.run is not None
    return without_result(cell.run, outcome, reason)
