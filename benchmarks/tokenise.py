"""How fast does `finegauge data` count the tokens of a large JSONL, and in how much memory?

Two processes read the same file, in turns of half a second, the other stopped meanwhile, so that a change
in the machine's load meets both: A, a bare loop over the library `tokenizers` (parse a line,
`encode_batch_fast` a thousand texts at a time, keep their lengths) and nothing else; B, `finegauge data` with
nothing in its cache: formats told apart, findings, hashes, histogram. The promises: B's rate is at least 0.8
of A's, B never holds 1 GiB, and asked again B answers in 0.3 s of one processor. This program ends with 1
when one is broken.

Texts and tokenizer are made here: words of made-up syllables, as frequent as Zipf has them, lengths
log-normal as in instruction data; a byte-level BPE of 16,000 tokens trained on them.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

LEAST_RATIO = 0.8
MOST_BYTES = 1 << 30
MOST_AGAIN_S = 0.3
TURN_S, POLL_S = 0.5, 0.005
FINEGAUGE = str(Path(sys.executable).with_name("finegauge"))
SYLLABLES = ("ka", "to", "ri", "men", "so", "lu", "ver", "an", "chi", "do", "pre", "gra", "ti", "on", "es")
NUM_WORDS, POOL_WORDS, VOCABULARY = 30_000, 2_000_000, 16_000
MEDIAN_WORDS, SPREAD = 62.0, 0.7  # of a sample; about 100 tokens in the mean

BARE = """
import json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
lengths, texts = [], []
def count():
    lengths.extend(map(len, tokenizer.encode_batch_fast(texts)))
    texts.clear()
with open(sys.argv[1], encoding="utf-8") as file:
    for line in file:
        texts.append(json.loads(line)["text"])
        if len(texts) == 1000:
            count()
count()
print(json.dumps({"num_samples": len(lengths), "num_tokens": sum(lengths)}))
"""


class Done(NamedTuple):
    """One process."""

    wall_s: float  # while it was its turn
    cpu_s: float
    peak_bytes: int
    num_tokens: int


def texts(num_samples: int, seed: int = 0) -> Iterator[str]:
    """Yield made-up texts, the same for the same seed."""
    dice = random.Random(seed)
    words = ["".join(dice.choices(SYLLABLES, k=dice.choice((1, 1, 2, 2, 3, 4)))) for _ in range(NUM_WORDS)]
    weights = list(accumulate(1 / (rank + 1) for rank in range(NUM_WORDS)))
    pool = dice.choices(words, cum_weights=weights, k=POOL_WORDS)
    for _ in range(num_samples):
        length = 1 + int(MEDIAN_WORDS * dice.lognormvariate(0.0, SPREAD))
        start = dice.randrange(POOL_WORDS - min(length, POOL_WORDS - 1))
        yield " ".join(pool[start : start + length]).capitalize() + "."


def write_data(folder: Path, num_samples: int) -> Path:
    """Write the texts as JSONL."""
    path = folder / "texts.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts(num_samples))
    return path


def write_tokenizer(folder: Path) -> Path:
    """Train a byte-level BPE and write its tokenizer.json."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    made: Any = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=ByteLevel.alphabet())
    made.train_from_iterator(texts(5000), trainer)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def in_turn(commands: Sequence[list[str]], cache: Path) -> list[Done]:
    """Run processes that print JSON side by side, each going on only while the others are stopped."""
    environment = {**os.environ, "FINEGAUGE_CACHE_DIR": str(cache)}
    outputs = [str(cache.with_name(f"output-{number}")) for number in range(len(commands))]
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    pids = [
        os.posix_spawn(
            one[0],
            one,
            environment,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, path, how, 0o600)],
            setpgroup=0,  # stopped and let go on with the processes that it starts
        )
        for one, path in zip(commands, outputs, strict=True)
    ]
    for pid in pids:
        os.killpg(pid, signal.SIGSTOP)
    seconds, ended = [0.0] * len(pids), dict[int, Any]()
    while len(ended) < len(pids):
        for number, pid in enumerate(pids):
            if number not in ended:
                spent_s, usage = turn(pid, alone=len(ended) == len(pids) - 1)
                seconds[number] += spent_s
                if usage is not None:
                    ended[number] = usage
    done = []
    for number, path in enumerate(outputs):
        usage, printed = ended[number], json.loads(Path(path).read_bytes())
        cpu_s = usage.ru_utime + usage.ru_stime
        done.append(Done(seconds[number], cpu_s, usage.ru_maxrss * 1024, printed["num_tokens"]))
    return done


def turn(pid: int, *, alone: bool) -> tuple[float, Any]:
    """Let a stopped process go on for its turn; return the seconds, and what it used where it ended.

    Args:
        pid: The process.
        alone: Whether its turn lasts to its end.
    Raises: SystemExit where the process failed.
    """
    start = time.perf_counter()
    os.killpg(pid, signal.SIGCONT)
    while alone or time.perf_counter() - start < TURN_S:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            if code := os.waitstatus_to_exitcode(status):
                raise SystemExit(f"A process ended with {code}.")
            return time.perf_counter() - start, usage
        time.sleep(POLL_S)
    os.killpg(pid, signal.SIGSTOP)
    return time.perf_counter() - start, None


def line(name: str, done: list[Done], num_samples: int) -> str:
    """Return one line: the rate in the median, processor seconds, the most memory."""
    wall_s = statistics.median(one.wall_s for one in done)
    cpu_s = statistics.median(one.cpu_s for one in done)
    rates = f"{num_samples / wall_s:>8,.0f} samples/s {done[0].num_tokens / wall_s / 1e6:5.2f} M tokens/s"
    memory = f"peak {max(one.peak_bytes for one in done) / 2**20:.0f} MiB"
    return f"  {name:<28} {wall_s:7.2f} s {rates}   {cpu_s:7.2f} CPU s   {memory}"


def main() -> int:
    """Make the data, time, print, and return 0 if the promises hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=40_000, help="samples of the file (default: 40,000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of both (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="finegauge-tokenise-") as made:
        folder = Path(made)
        data, tokenizer, cache = (
            write_data(folder, options.samples),
            write_tokenizer(folder),
            folder / "cache",
        )
        bare_command = [sys.executable, "-c", BARE, str(data), str(tokenizer)]
        our_command = [FINEGAUGE, "data", str(data), "--tokenizer", str(tokenizer), "--json"]
        bare: list[Done] = []
        ours: list[Done] = []
        for number in range(options.runs):
            shutil.rmtree(cache, ignore_errors=True)
            pair = [(bare_command, bare), (our_command, ours)][:: -1 if number % 2 else 1]
            for done, (_, where) in zip(in_turn([command for command, _ in pair], cache), pair, strict=True):
                where.append(done)
        again = [in_turn([our_command], cache)[0] for _ in range(5)]
        size = data.stat().st_size
    ratio = statistics.median(one.wall_s for one in bare) / statistics.median(one.wall_s for one in ours)
    peak_bytes = max(one.peak_bytes for one in ours)
    again_s = min(one.cpu_s for one in again)
    waited_s = min(one.wall_s for one in again)
    print(
        f"A JSONL of {options.samples:,} samples, {size / 1e6:,.0f} MB, "
        f"median of {options.runs} runs, in turns of {TURN_S:g} s:"
    )
    print(line("bare tokenizers loop", bare, options.samples))
    print(line("finegauge data, cache empty", ours, options.samples))
    promises = (
        (f"rate {ratio:.2f} of the bare loop's, at least {LEAST_RATIO:g}", ratio >= LEAST_RATIO),
        (f"peak {peak_bytes / 2**20:.0f} MiB, less than {MOST_BYTES >> 20:,}", peak_bytes < MOST_BYTES),
        (
            f"asked again {again_s:.3f} CPU s ({waited_s:.3f} s), at most {MOST_AGAIN_S:g}",
            again_s <= MOST_AGAIN_S,
        ),
        ("the same tokens", ours[0].num_tokens == bare[0].num_tokens == again[0].num_tokens),
    )
    for says, holds in promises:
        print(f"  {says}: {'pass' if holds else 'FAIL'}")
    return 0 if all(holds for _, holds in promises) else 1


if __name__ == "__main__":
    sys.exit(main())
