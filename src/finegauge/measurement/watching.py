"""A training of somebody else, looked at from outside: its steps, memory and energy.

    steps    each line of its output that says how far it is, as it comes; in its folder trainer_state.json
             and the events of TensorBoard, else lines of its logs
    memory   of a GPU what its processes hold (NVML); else what they hold of the host, by /proc: the process
             that held most, and all together
    energy   of the GPUs they are on (NVML's counter), since the start

Nothing is put into the process, and nothing waits for it: its output is passed on as it comes. It is looked
at twice a second, or so much less often that looking takes 1/400 of one core, once in 5 s at least. A step is
the time between two such lines over the steps between them; the first is warm-up. Several steps between two
lines count as alike.
"""

import os
import re
import selectors
import signal
import subprocess
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from statistics import quantiles
from typing import Any, NamedTuple

from finegauge.catalogue.machine import host_memory_bytes
from finegauge.documents import open_regular
from finegauge.errors import InputError, shown
from finegauge.formats.training_events import Progress, files_below, loss_of, progress_of, state_of, steps_of
from finegauge.measurement.instruments.counters import ENERGY, every_nvml
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run

SOURCE = "a training under 'finegauge watch'"
LOOK_EVERY_S = 0.5
SELDOMEST_S = 5.0
LOOK_SHARE = 1 / 400  # of one core, that looking takes at most, where it is not the seldomest
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 200_000
MAX_LOG_BYTES = 4_000_000  # at a look
MAX_LINE = 4_000
MAX_STEPS = 100_000
MAX_PROCESSES = 4_096
_HELD = re.compile(rb"^Vm(HWM|RSS):\s+(\d+) kB", re.MULTILINE)


class Seen(NamedTuple):
    """What is known of a training so far."""

    steps: int  # done
    total: int  # 0: not known
    wall_s: float
    step_times_s: Sequence[float]  # without the first
    step_s: float  # their median; 0 before there are two steps
    loss: float | None
    memory_bytes: float  # now: of the fullest GPU, else of the fullest process
    peak_bytes: float
    host_bytes: float  # of all processes together, now
    host_peak_bytes: float
    gpu: str  # "": none of its processes is on one
    device_bytes: float  # that the fullest GPU has; of the host where there is none
    energy_j: float | None

    @property
    def left_s(self) -> float | None:
        """Return how long the steps that are left take; None where that is not known."""
        return (self.total - self.steps) * self.step_s if self.total > self.steps and self.step_s else None


class Steps:
    """The times of steps, from marks of how far a training is."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self.times_s: list[float] = []
        self._ordered_s: list[float] = []
        self.loss: float | None = None
        self._at_s = 0.0

    def read(self, line: str, now_s: float) -> None:
        """Take a line of output that came at `now_s`."""
        found = progress_of(line[:MAX_LINE])
        if found is not None:
            self.mark(found._replace(at_s=now_s))
        loss = loss_of(line[:MAX_LINE])
        self.loss = self.loss if loss is None else loss

    def mark(self, found: Progress) -> None:
        """Take how far it is; a bar that begins anew (an evaluation's) is another one."""
        if self.total and found.total not in (0, self.total):
            return
        steps = found.done - self.done
        if found.total:
            self.total = found.total
        if steps <= 0:
            return
        if self.done and self._at_s and len(self.times_s) + steps <= MAX_STEPS:
            alike_s = [(found.at_s - self._at_s) / steps] * steps
            self.times_s += alike_s
            at = bisect(self._ordered_s, alike_s[0])
            self._ordered_s[at:at] = alike_s
        self.done, self._at_s = found.done, found.at_s

    @property
    def typical_s(self) -> float:
        """Return the median of the steps; 0 before there are two."""
        found, middle = self._ordered_s, len(self._ordered_s) // 2
        return (found[middle] + found[~middle]) / 2 if found else 0.0


class Watch:
    """Looks at the processes below one, and at the folder that it writes to."""

    def __init__(self, process: int = 0, folder: str = "") -> None:
        """Begin with process number `process` and what it starts (0: none), and with `folder` ("": none)."""
        self.steps = Steps()
        self.every_s = LOOK_EVERY_S  # until the next look
        self._process, self._folder = process, folder
        self._read_bytes: dict[str, int] = {}  # of each file of events
        self._logs: set[str] = set()  # of those files: of lines
        self._state_s = 0.0  # when the newest state was written
        self._room_bytes = host_memory_bytes()[0]
        self._began_s = time.monotonic()
        self._gpus = _Gpus()
        self._peak = self._host_peak = 0.0

    def look(self) -> Seen:
        """Return what is known now."""
        began_s = time.thread_time()
        processes = list(_family(self._process)) if self._process else []
        held = [_held(one) for one in processes]
        host = sum(now for now, _ in held)
        memory, total = max((now for now, _ in held), default=0.0), self._room_bytes
        peak = max((most for _, most in held), default=0.0)
        if found := self._gpus.fullest(set(processes)):
            memory, total = found
            peak = memory
        self._peak, self._host_peak = max(self._peak, peak), max(self._host_peak, host)
        if self._folder:
            self._look_into(self._folder)
        seen = Seen(
            self.steps.done, self.steps.total, time.monotonic() - self._began_s, self.steps.times_s,
            self.steps.typical_s, self.steps.loss, memory, self._peak, host, self._host_peak, self._gpus.gpu,
            total, self._gpus.energy_j(),
        )  # fmt: skip
        took_s = time.thread_time() - began_s
        self.every_s = max(LOOK_EVERY_S, min(SELDOMEST_S, took_s / LOOK_SHARE))
        return seen

    def _look_into(self, folder: str) -> None:
        for step in steps_of(folder, self._read_bytes):
            self.steps.mark(step)
        if not self._read_bytes.keys() - self._logs:  # which have clocks of their own
            for path in files_below(folder, lambda name, _: name.endswith((".log", ".jsonl", ".out"))):
                self._read_log(path)
        if (state := state_of(folder, self._state_s)) is not None:
            self._state_s = state.at_s
            self.steps.total = self.steps.total or state.total
            if state.done > self.steps.done:
                self.steps.mark(state)

    def _read_log(self, path: str) -> None:
        """Take what a log has more than at the last look; of what was there at the first no time is known."""
        begin = self._read_bytes.get(path, 0)
        with suppress(OSError), open(open_regular(path), "rb") as file:
            file.seek(begin)
            *lines, rest = re.split(rb"[\r\n]", file.read(MAX_LOG_BYTES))
            self._read_bytes[path] = file.tell() - len(rest)
            for line in lines:
                at_s = time.time() if path in self._logs else 0.0
                self.steps.read(line.decode("utf-8", errors="replace"), at_s)
            self._logs.add(path)


def profile_of(run: Run, seen: Seen, tokens: float, sequences: float, ended: tuple[str, str]) -> Profile:
    """Return the measured profile of a training that has ended with an outcome and its reason."""
    outcome, reason = ended
    steps_s = list(seen.step_times_s)
    if outcome == "completed" and not steps_s:
        outcome, reason = "failed", "fewer than two steps were seen, and the first is warm-up"
    timing = timing_of(seen.steps, steps_s)
    if outcome != "completed":  # no data
        steps_s, tokens = [], 0.0
    memory = {"memory_peak_bytes": seen.peak_bytes, "host_peak_bytes": seen.host_peak_bytes}
    on_gpu = Breakdown.of(processes=seen.peak_bytes) if seen.gpu else Breakdown({})
    energy = seen.energy_j / seen.steps if seen.energy_j and steps_s else 0.0
    return Profile(
        run=run,
        source=Source("measured", f"{SOURCE}, {seen.gpu or 'processor'}",
                      assumptions=(f"steps: 1 discarded as warm-up, {len(steps_s)} seen from outside",)),
        outcome=outcome, reason=reason, device_memory_bytes=on_gpu, capacity_bytes=seen.device_bytes,
        step_time_s=Breakdown.of(step=seen.step_s) if steps_s else Breakdown({}),
        step_times_s=tuple(steps_s[-1000:]), step_tokens=tokens, step_sequences=sequences,
        step_energy_j=Breakdown.of(device=energy) if energy else Breakdown({}),
        observations={"timing": timing, "memory": memory},
    )  # fmt: skip


def timing_of(steps: int, steps_s: Sequence[float]) -> dict[str, float]:
    """Return what is said of the seconds of all `steps` but the first."""
    found: dict[str, float] = {"steps": steps, "warmup_steps": 1}
    if len(steps_s) > 1:
        tenths = quantiles(steps_s, n=10)
        found |= {"p10_s": tenths[0], "p90_s": tenths[-1]}
    return found


def gpu_here() -> str:
    """Return what the first GPU of this machine calls itself; "" where there is none that NVML knows."""
    return _Gpus().name()


def _family(process: int) -> Iterator[int]:
    pending, number = [process], 0
    while pending and number < MAX_PROCESSES:
        one = pending.pop()
        number += 1
        yield one
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                pending += map(int, _content(f"/proc/{one}/task/{thread}/children").split())


def _held(process: int) -> tuple[float, float]:
    """Return what a process holds of the host's memory, and the most that it held."""
    found = dict(_HELD.findall(_content(f"/proc/{process}/status")))
    return 1024.0 * int(found.get(b"RSS", 0)), 1024.0 * int(found.get(b"HWM", 0))


def _content(path: str) -> bytes:
    """Return what a file of /proc says, "" where it is gone; without the buffers that open() makes."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


class _Gpus:
    """The GPUs of this machine, where NVML and nvidia-ml-py are there."""

    def __init__(self) -> None:
        self.gpu = ""
        self._all = every_nvml()
        self._used: list[int] = []
        self._began_mj = [one.ask(ENERGY) for one in self._all]

    def fullest(self, processes: set[int]) -> tuple[float, float] | None:
        """Return what those processes hold of the GPU where they hold most, and what that one has."""
        found: list[tuple[float, float, int]] = []
        for number, one in enumerate(self._all):
            held, memory = one.held_bytes(processes), one.ask("nvmlDeviceGetMemoryInfo")
            if held and memory is not None:
                found.append((held, float(memory.total), number))
        if not found:
            return None
        held, total, number = max(found)
        self.gpu = self.name(number)
        self._used = [n for _, _, n in found]
        return held, total

    def name(self, number: int = 0) -> str:
        """Return what a GPU of this machine calls itself; "" where there is none."""
        name = self._all[number].ask("nvmlDeviceGetName") if number < len(self._all) else None
        return name.decode() if isinstance(name, bytes) else str(name or "")

    def energy_j(self) -> float | None:
        """Return the joules of the GPUs in use since the start; None where they are not known."""
        pairs = [(self._began_mj[n], self._all[n].ask(ENERGY)) for n in self._used]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return float(sum(now - began for began, now in pairs)) / 1000


def watched_command(
    command: Sequence[str], folder: str, look: Callable[[Seen], None], pass_on: Callable[[bytes, bool], None]
) -> tuple[int, Seen, str]:
    """Run a command until it ends; return its exit code, what was seen, and the end of what it printed.

    The exit code is 128 and the signal's number where one ended it.

    Args:
        command: What to start, without a shell.
        folder: Where it writes; "" is nowhere.
        look: Is told what is known at every look.
        pass_on: Gets every piece of its output as it comes, and whether that is standard error.

    Raises: InputError if it cannot be started.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    except OSError as error:
        raise InputError(f"{shown(command[0])} cannot be started: {error.strerror or error}.") from None
    watch = Watch(child.pid, folder)
    tail = b""
    with _left_to(child), selectors.DefaultSelector() as selector:
        for pipe, is_error in ((child.stdout, False), (child.stderr, True)):
            selector.register(pipe, selectors.EVENT_READ, (is_error, _Lines(watch.steps)))  # type: ignore[arg-type]
        due_s = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(max(0.0, due_s - time.monotonic())):
                is_error, lines = key.data
                chunk = os.read(key.fd, CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                pass_on(chunk, is_error)
                lines.read(chunk)
                tail = (tail + chunk)[-TAIL_BYTES:]
            if time.monotonic() >= due_s:
                look(watch.look())
                due_s = time.monotonic() + watch.every_s
            if (
                child.poll() is not None
                and not select([key.fd for key in selector.get_map().values()], [], [], 0)[0]
            ):
                break  # others may hold the pipes that it left
        code = child.wait()
    return code if code >= 0 else 128 - code, watch.look(), tail.decode("utf-8", errors="replace")


def watched_until(watch: Watch, ends: Callable[[], bool], look: Callable[[Seen], None]) -> Seen:
    """Return what was seen once it `ends`; `look` gets what is known until then."""
    while not ends():
        look(watch.look())
        time.sleep(watch.every_s)
    return watch.look()


class _Lines:
    """Hands the lines of one stream on; a progress bar ends its lines with a carriage return."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._rest = steps, b""

    def read(self, chunk: bytes) -> None:
        now_s = time.time()
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + chunk)
        self._rest = self._rest[-MAX_LINE:]
        for line in lines:
            self._steps.read(line.decode("utf-8", errors="replace"), now_s)
        if self._rest.endswith((b"it/s]", b"s/it]", b"?it/s]")):  # a bar that is written before its return
            self._steps.read(self._rest.decode("utf-8", errors="replace"), now_s)


@contextmanager
def _left_to(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Leave Ctrl-C to the child, which gets it too, and hand a request to end on to it."""

    def hand_on(number: int, _frame: Any) -> None:
        with suppress(ProcessLookupError):
            child.send_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, hand_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if child.poll() is None:
            child.kill()
            child.wait()
