"""What is asked of a server: prompts as long as the run's, no two alike, so that none is in its cache.

`completions` gets the tokens themselves: those of the run's texts, else random ones. `chat` gets
text: random tokens written out by the run's tokenizer, cut to the length; without a tokenizer
common words, of which most tokenizers make one token each. The server's own count is reported.
"""

import random
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.workload.prompts import prompts_of

if TYPE_CHECKING:
    from finegauge.workload.run import Run

COMMON = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city"
)
WORDS = COMMON.split()
PLAIN_FRACTIONS = (0.02, 0.8)  # of a vocabulary: what stands around them may have a meaning of its own
TRIES = 8  # text that is cut is not always cut into the same tokens again


class Prompt(NamedTuple):
    """What one request asks."""

    content: list[int] | str  # tokens for completions, text for chat
    tokens: int  # its length as meant; the server may count another


def prompts(run: "Run", api: str, seed: int) -> Iterator[Prompt]:
    """Yield prompts of `run` without end.

    Raises: FineGaugeError where the run's data set or tokenizer cannot be read.
    """
    dice = random.Random(seed)
    asked = prompts_of(run)
    samples = _samples(asked, dice)
    if api == "completions":
        for tokens in samples:
            yield Prompt(tokens, len(tokens))
    writer = _tokenizer(run)
    for tokens in samples:
        if writer is None:
            yield Prompt(" ".join(dice.choices(WORDS, k=len(tokens))), len(tokens))
        else:
            yield _written(writer, tokens)


def _samples(asked: "Run", dice: random.Random) -> Iterator[list[int]]:
    """Yield the tokens of prompts: the run's texts in random order, else random ones of its lengths."""
    from finegauge.workload.data import lengths

    if asked.dataset is not None and asked.tokenizer is not None:
        from finegauge.workload.tokenised import tokenised

        texts = [text[: asked.seq_len] for text in tokenised(asked.dataset, asked.tokenizer) if text]
        dice.shuffle(texts)
        yield from cycle(texts)
    vocab_size = int(asked.config["vocab_size"])
    low, high = (int(fraction * vocab_size) for fraction in PLAIN_FRACTIONS)
    known = lengths(asked, padded=False)
    while True:
        length = dice.choices(known.lengths, known.counts)[0] if known else asked.seq_len
        yield dice.choices(range(low, max(high, low + 1)), k=length)


def _tokenizer(run: "Run") -> Any:
    """Return the run's tokenizer; None where it names none."""
    if run.tokenizer is None:
        return None
    from finegauge.workload.dataset_files.tokenizer import load, tokenizer_file

    return load(tokenizer_file(run.tokenizer))


def _written(writer: Any, tokens: list[int]) -> Prompt:
    """Return tokens as text that has as many of them, as near as cutting and adding brings it."""
    wanted, known = len(tokens), writer.get_vocab_size()
    tokens = [token % known for token in tokens]
    text, best, off = writer.decode(tokens), "", wanted + 1
    for _ in range(TRIES):
        found = writer.encode(text, add_special_tokens=False).ids
        if abs(len(found) - wanted) < off:
            best, off = text, abs(len(found) - wanted)
        if not off:
            break
        text = writer.decode((found + tokens[len(found) :])[:wanted])
    return Prompt(best or text, wanted)
