r"""A load of requests on an engine, one by one: when each is read, written and done.

Requests come from users who each wait for their answer before they ask again, by chance (a Poisson process),
or all at once. A step of the engine reads the prompts that have come, up to `max_num_batched_tokens` of
them and of a longer prompt a part, beside one token of every answer that is being written; who finds no room
in the cache, or comes when `max_num_seqs` run, waits in line. Between two such events all steps are alike and
are taken at once:

$$ t_{step}(n, c) + t_{prompts} \qquad n \text{ answers of } c \text{ tokens in the cache} $$

Of users the first answers are cut short evenly and not counted, so that they end one by one as they do later.
Neglected: prompts that are cached already, preemption (whoever is let in has room for all of an answer), the
network to the client.
"""

from collections import deque
from heapq import heappop, heappush
from math import ceil
from random import Random

from finegauge.data.batch_shape import answer_lengths
from finegauge.prediction.generation import cache_bytes
from finegauge.prediction.rollout import Engine, EngineClock, Generate
from finegauge.prediction.serving import CacheRoom, Limits
from finegauge.prediction.time import Question, StepTime
from finegauge.profile import Breakdown
from finegauge.records import NamedTuple
from finegauge.run.phases import answer_tokens, micro_steps
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


class _Load:
    """One replica at work."""

    def __init__(self, run: Run, clock: EngineClock, prompt_tokens: float) -> None:
        self.run, self.clock, self.prompt = run, clock, prompt_tokens
        self.batched = Limits.of(run).batched_tokens
        self.random, self.known = Random(SEED), answer_lengths(run)
        self.number = run.micro_batch_size * micro_steps(run)
        self.users = run.micro_batch_size if run.arrivals == "users" else 0
        self.waiting: deque[tuple[float, int, bool]] = deque()  # arrival, tokens, whether it counts
        self.coming: deque[float] = deque()
        self.running: list[tuple[float, int, float, float, int, bool]] = []  # by the step that ends it
        self.now = self.step = 0.0
        self.held = self.written = 0.0  # tokens that those who run may come to hold, and have written
        self.sums = [0.0] * 4  # seconds of prompts and of tokens; rows and contexts over these
        self.answered: list[Request] = []
        self.began = 0.0

    def run_all(self) -> Served:
        """Serve all requests."""
        if self.users:
            for user in range(self.users):  # which are done one by one
                cut = max(1, round(self._length() * (user + 0.5) / self.users))
                self.waiting.append((0.0, cut, False))
        elif self.run.arrivals == "poisson":
            rate, at = (self.run.arrivals_per_s or 1.0) / self.run.data_parallel, 0.0
            for _ in range(self.number):
                at += self.random.expovariate(rate)
                self.coming.append(at)
        else:
            self.waiting.extend((0.0, self._length(), True) for _ in range(self.number))
        while len(self.answered) < self.number:
            self._advance()
        seconds = max(one.last_s for one in self.answered) - self.began
        prompts_s, tokens_s, rows, contexts = self.sums
        mean = rows / tokens_s if tokens_s else 1.0
        return Served(tuple(self.answered), seconds, prompts_s, tokens_s, mean, contexts / max(rows, 1e-30))

    def _length(self) -> int:
        most = answer_tokens(self.run)
        if self.known is None:
            return most
        place = self.random.random() * self.known.num_samples
        for length, count in zip(self.known.lengths, self.known.counts, strict=True):
            place -= count
            if place <= 0:
                return length
        return most

    def _arrive(self) -> None:
        while self.coming and self.coming[0] <= self.now:
            self.waiting.append((self.coming.popleft(), self._length(), True))
        if not (self.waiting or self.running):
            self.now = self.coming[0]
            self._arrive()

    def _advance(self) -> None:
        """Read what may be read; else write until something happens."""
        self._arrive()
        let_in: list[tuple[float, int, bool]] = []
        read = 0.0
        while self.waiting and len(self.running) + len(let_in) < self.clock.engine.at_once:
            arrived, tokens, counts = self.waiting[0]
            needed = self.prompt + tokens
            full = self.held + needed > self.clock.engine.cache_tokens
            if (full and (self.running or let_in)) or (let_in and read + self.prompt > self.batched):
                break
            self.waiting.popleft()
            let_in.append((arrived, tokens, counts))
            self.held, read = self.held + needed, read + self.prompt
        steps = self._steps_alike() if not let_in else self._steps_reading(read)
        self._write(steps, len(let_in) * self.clock.prompt_s)
        for arrived, tokens, counts in let_in:
            entry = (self.step + tokens - 1, len(self.answered), arrived, self.now, tokens, counts)
            heappush(self.running, entry)
            self.written += 1
        self._end()

    def _steps_reading(self, tokens: float) -> float:
        """Return the steps in which `tokens` of prompts are read: those of a longer prompt come in parts."""
        ends = self.running[0][0] - self.step if self.running else 1.0
        return float(max(1, min(ends, ceil(tokens / self.batched))))

    def _steps_alike(self) -> float:
        """Return how many steps pass before an answer is done or a request arrives."""
        steps = max(1.0, self.running[0][0] - self.step)
        if self.coming and len(self.running) < self.clock.engine.at_once:
            one_s = self.clock.token_s(len(self.running), self._context())
            steps = min(steps, max(1.0, (self.coming[0] - self.now) / one_s))
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

    def _end(self) -> None:
        while self.running and self.running[0][0] <= self.step:
            _, _, arrived, first, tokens, counts = heappop(self.running)
            self.held -= self.prompt + tokens
            self.written -= tokens
            if counts:
                self.answered.append(Request(arrived, first, self.now, tokens))
            elif not self.began:
                self.began = self.now
            if self.users:
                self.waiting.append((self.now, self._length(), True))


def _step(clock: EngineClock, served: Served) -> StepTime:
    """Return the time of a load by stage and part, and how long nothing was there to be done."""
    rows, context = max(1.0, served.rows), max(served.context_tokens, clock.prompt_tokens + 2.0)
    step = clock.spent("prefill", "decode", rows, context, served.prompts_s, served.tokens_s)
    busy = served.prompts_s + served.tokens_s
    if served.seconds > (1.0 + 1e-9) * busy:
        idle = Breakdown({("waiting", "requests"): served.seconds - busy})
        step = step._replace(parts=step.parts + idle)
    return step.times(min(1.0, served.seconds / busy))  # but users' first answers, which are not counted
