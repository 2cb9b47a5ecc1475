r"""A load of requests on an engine, one by one: when each is read, written and done.

Requests come from users who each wait for their answer before they ask again, by chance (a Poisson process),
or all at once. A step of the engine reads the prompts that have come, up to `max_num_batched_tokens` of
them and of a longer prompt a part, beside one token of every answer that is being written; who finds no room
in the cache, or comes when `max_num_seqs` run, waits in line. vLLM and SGLang take whoever's prompt has room,
and where the cache is full the youngest answer makes room and is read again later [1]; others keep room for
the longest answer (`reserves_answers`). Between two such events all steps are alike and are taken at once:

$$ t_{step}(n, c) + t_{prompts} \qquad n \text{ answers of } c \text{ tokens in the cache} $$

Of users the first answers are cut short evenly and not counted, so that they end one by one as they do later;
what counts are the answers that are done after all of these.
Neglected: prompts that are cached already, the network to the client.

[1] vllm/v1/core/sched/scheduler.py (read 2026-11-23)
"""

from collections import deque
from heapq import heappop, heappush
from math import ceil
from random import Random

from finegauge.data.batch_shape import answer_lengths
from finegauge.prediction.generation import cache_bytes
from finegauge.prediction.rollout import KEPT_FREE, Engine, EngineClock, Generate
from finegauge.prediction.serving import CacheRoom, Limits
from finegauge.prediction.time import Question, StepTime
from finegauge.profile import Breakdown
from finegauge.records import NamedTuple
from finegauge.run.phases import answer_tokens, engine_of, micro_steps
from finegauge.run.run import Run

SEED = 0
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Request(NamedTuple):
    """One request that was answered."""

    arrived_s: float
    first_s: float  # when its first token was there
    last_s: float
    new_tokens: int


class Served(NamedTuple):
    """A load that was served by one replica."""

    answered: tuple[Request, ...]
    seconds: float  # from the first request that counts to the last answer
    prompts_s: float
    tokens_s: float
    rows: float  # answers at once, on average over the tokens' steps
    context_tokens: float  # of each, likewise
    made_room: int = 0  # times that an answer was cut short for others and read again

    def observed(self, run: Run) -> dict[str, object]:
        """Return what a client would see of all replicas, under the names of a measured endpoint."""
        replicas, number = run.data_parallel, len(self.answered)
        tokens = sum(one.new_tokens for one in self.answered)
        several = [one for one in self.answered if one.new_tokens > 1]
        between = [(one.last_s - one.first_s) / (one.new_tokens - 1) for one in several]
        latencies = [one.last_s - one.arrived_s for one in self.answered]
        return {
            "num_requests": number * replicas,
            "num_failed": 0,
            "failures": {},
            "num_users": run.micro_batch_size * replicas if run.arrivals != "poisson" else 0,
            "asked_requests_per_s": run.arrivals_per_s or 0.0,
            "ttft_s": percentiles([one.first_s - one.arrived_s for one in self.answered]),
            "time_per_output_token_s": percentiles(between),
            "inter_token_latency_s": {},
            "latency_s": percentiles(latencies),
            "requests_per_s": replicas * number / self.seconds,
            "written_tokens_per_s": replicas * tokens / self.seconds,
            "in_flight": replicas * sum(latencies) / self.seconds,
            "num_preemptions": replicas * self.made_room,
        }


def percentiles(values: list[float]) -> dict[str, float]:
    """Return the mean of `values` and some percentiles, each a value that is there."""
    if not values:
        return {}
    ordered = sorted(values)
    found = {name: ordered[min(len(ordered) - 1, int(at * len(ordered)))] for name, at in PERCENTILES.items()}
    return {"mean": sum(ordered) / len(ordered), **found}


def serve(
    asked: Question, room: CacheRoom, prompt_tokens: float, generate: Generate
) -> tuple[Served, StepTime]:
    """Return how the load of a run is served by one of its replicas, and the time of that by part."""
    run = asked.run
    clock = _clock(asked, room, prompt_tokens, generate)
    load = _Load(run, clock, prompt_tokens)
    served = load.run_all()
    return served, _step(clock, served)


def _clock(asked: Question, room: CacheRoom, prompt_tokens: float, generate: Generate) -> EngineClock:
    run, share, limits = asked.run, asked.share, Limits.of(asked.run)
    gpus, per_node = run.num_gpus // run.data_parallel, run.num_gpus // run.num_nodes
    alone = run.replace(
        phase="decode", max_new_tokens=2, mean_new_tokens=None, arrivals_per_s=None, arrivals="users",
        micro_batch_size=1, num_gpus=gpus,
        num_nodes=gpus // per_node if gpus > per_node and gpus % per_node == 0 else 1,
        data_parallel_replicate=1, data_parallel_shard=1,
    )  # fmt: skip
    one = cache_bytes(share.graph, 1.0, run.seq_len, run)
    tokens = room.held_bytes / one * run.seq_len if one else float("inf")
    in_flight = limits.num_seqs if run.arrivals == "poisson" else min(limits.num_seqs, run.micro_batch_size)
    fit = int(tokens // (prompt_tokens + 1)) if one else in_flight
    return EngineClock(
        asked,
        Engine(
            alone, share, run.data_parallel, 0, max(1, min(in_flight, fit)), 0.0, 0.0, room.held_bytes,
            tokens, 0.0, limits.memory_fraction,
        ),
        prompt_tokens,
        generate,
    )  # fmt: skip


class _Waiting(NamedTuple):
    """A request in line."""

    arrived_s: float
    new_tokens: int
    counts: bool  # but of each user's first
    first_s: float = 0.0  # of who made room for others and is read again
    written: float = 0.0


class _Load:
    """One replica at work."""

    def __init__(self, run: Run, clock: EngineClock, prompt_tokens: float) -> None:
        self.run, self.clock, self.prompt = run, clock, prompt_tokens
        self.batched, self.most = Limits.of(run).batched_tokens, answer_tokens(run)
        self.reserves = engine_of(run).reserves_answers
        self.random, self.known = Random(SEED), answer_lengths(run)
        self.number = run.micro_batch_size * micro_steps(run)
        self.users = self.firsts = run.micro_batch_size if run.arrivals == "users" else 0
        self.waiting: deque[_Waiting] = deque()
        self.coming: deque[float] = deque()
        self.running: dict[int, tuple[_Waiting, float]] = {}  # with the step before their first, as they came
        self.ends: list[tuple[float, int]] = []  # the step that ends each, those that made room too
        self.now = self.step = 0.0
        self.held = self.written = 0.0  # tokens in the cache, or kept for answers, and those written
        self.sums = [0.0] * 4  # seconds of prompts and of tokens; rows and contexts over these
        self.answered: list[Request] = []
        self.began, self.let_in, self.made_room = 0.0, 0, 0

    def run_all(self) -> Served:
        """Serve all requests."""
        if self.users:
            for user in range(self.users):  # which are done one by one
                cut = max(1, round(self._length() * (user + 0.5) / self.users))
                self.waiting.append(_Waiting(0.0, cut, counts=False))
        elif self.run.arrivals == "poisson":
            rate, at = (self.run.arrivals_per_s or 1.0) / self.run.data_parallel, 0.0
            for _ in range(self.number):
                at += self.random.expovariate(rate)
                self.coming.append(at)
        else:
            self.waiting.extend(_Waiting(0.0, self._length(), counts=True) for _ in range(self.number))
        while len(self.answered) < self.number:
            self._advance()
        seconds = max(one.last_s for one in self.answered) - self.began
        prompts_s, tokens_s, rows, contexts = self.sums
        mean, context = rows / tokens_s if tokens_s else 1.0, contexts / max(rows, 1e-30)
        return Served(tuple(self.answered), seconds, prompts_s, tokens_s, mean, context, self.made_room)

    def _length(self) -> int:
        if self.known is None:
            return self.most
        place = self.random.random() * self.known.num_samples
        for length, count in zip(self.known.lengths, self.known.counts, strict=True):
            place -= count
            if place <= 0:
                return length
        return self.most

    def _arrive(self) -> None:
        while self.coming and self.coming[0] <= self.now:
            self.waiting.append(_Waiting(self.coming.popleft(), self._length(), counts=True))
        if not (self.waiting or self.running):
            self.now = self.coming[0]
            self._arrive()

    def _advance(self) -> None:
        """Read what may be read; else write until something happens."""
        self._arrive()
        let_in: list[_Waiting] = []
        read, room = 0.0, self.clock.engine.cache_tokens
        while self.waiting and (others := len(self.running) + len(let_in)) < self.clock.engine.at_once:
            tokens = self.prompt + self.waiting[0].written
            needed = self.prompt + self.most if self.reserves else tokens
            kept = 0.0 if self.reserves else KEPT_FREE * others
            full = self.held + needed + kept > room
            if (full and others) or (let_in and read + tokens > self.batched):
                break
            let_in.append(self.waiting.popleft())
            self.held, read = self.held + needed, read + tokens
        steps = self._steps_reading(read) if let_in else self._steps_alike()
        self._write(steps, read / self.prompt * self.clock.prompt_s)
        for one in let_in:
            written = one.written + 1.0  # reading gives one
            self.let_in += 1
            first_s = one.first_s or self.now
            self.running[self.let_in] = (one._replace(first_s=first_s), self.step - written)
            heappush(self.ends, (self.step + one.new_tokens - written, self.let_in))
            self.written += written
            self.held += 0.0 if self.reserves else 1.0
        self._end()
        while not self.reserves and len(self.running) > 1 and self.held + len(self.running) > room:
            one, written = self._leaves(next(reversed(self.running)))  # the youngest makes room
            self.waiting.appendleft(one._replace(written=written))
            self.made_room += one.counts

    def _steps_reading(self, tokens: float) -> float:
        """Return the steps in which `tokens` of prompts are read: those of a longer prompt come in parts."""
        ends = self._next_end() - self.step if self.running else 1.0
        return float(max(1, min(ends, ceil(tokens / self.batched))))

    def _next_end(self) -> float:
        while self.ends[0][1] not in self.running:
            heappop(self.ends)
        return self.ends[0][0]

    def _steps_alike(self) -> float:
        """Return how many steps pass before an answer is done, a request arrives, or the cache is full."""
        rows = len(self.running)
        steps = max(1.0, self._next_end() - self.step)
        if self.coming and rows < self.clock.engine.at_once:
            one_s = self.clock.token_s(rows, self._context())
            steps = min(steps, max(1.0, (self.coming[0] - self.now) / one_s))
        if rows > 1 and not self.reserves:
            steps = min(steps, max(1.0, (self.clock.engine.cache_tokens - self.held) / rows))
        return float(int(steps))

    def _context(self) -> float:
        return self.prompt + self.written / max(1, len(self.running))

    def _write(self, steps: float, prompts_s: float) -> None:
        rows, seconds = len(self.running), 0.0
        if rows:
            context = self._context() + steps / 2.0
            seconds = steps * self.clock.token_s(rows, context)
            self.sums[2] += rows * seconds
            self.sums[3] += rows * context * seconds
        self.sums[0] += prompts_s
        self.sums[1] += seconds
        self.now += seconds + prompts_s
        self.step += steps
        self.written += rows * steps
        self.held += 0.0 if self.reserves else rows * steps

    def _leaves(self, number: int) -> tuple[_Waiting, float]:
        """Return an answer that leaves its place, and how much of it is written."""
        one, before = self.running.pop(number)
        written = self.step - before
        self.written -= written
        self.held -= self.prompt + (self.most if self.reserves else written)
        return one, written

    def _end(self) -> None:
        while self.running and self._next_end() <= self.step:
            one, _ = self._leaves(heappop(self.ends)[1])
            if not one.counts:
                self.firsts -= 1
                self.began = self.now
            elif not self.firsts:  # every user's first answer is done: as many run as will
                self.answered.append(Request(one.arrived_s, one.first_s, self.now, one.new_tokens))
            if self.users:
                self.waiting.append(_Waiting(self.now, self._length(), counts=True))


def _step(clock: EngineClock, served: Served) -> StepTime:
    """Return the time of a load by stage and part, and how long nothing was there to be done."""
    rows, context = max(1.0, served.rows), max(served.context_tokens, clock.prompt_tokens + 2.0)
    step = clock.spent("prefill", "decode", rows, context, served.prompts_s, served.tokens_s)
    busy = served.prompts_s + served.tokens_s
    if served.seconds > (1.0 + 1e-9) * busy:
        idle = Breakdown({("waiting", "requests"): served.seconds - busy})
        step = step._replace(parts=step.parts + idle)
    return step.times(min(1.0, served.seconds / busy))  # but users' first answers, which are not counted
