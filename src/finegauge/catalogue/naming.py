"""The base of a fine-tune, by its name alone: dolphin-2.9-llama3-8b has the shapes of Llama 3 8B.

A name tells its base where it holds the words of one family of the catalogue, with its version, and one size
that the family has. What tells of other shapes (a vision tower, a reward's head, experts merged of copies,
layers cut away, another language's words) or of a second family or size leaves it untold: a wrong base is
worse than none.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache

from finegauge.catalogue.models import FILE
from finegauge.catalogue.tables import lines_of
from finegauge.documents import parse_json
from finegauge.records import NamedTuple

_TOKEN = re.compile(r"\d+x\d+(?:\.\d+)?b|[ae]?\d+(?:\.\d+)?[bm](?![a-z])|v\d+(?:\.\d+)*|[a-z]+|\d+(?:\.\d+)*")
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?b|\d{2,}m")  # 1m is a length
_OTHER_VERSION = re.compile(r"\d{1,2}(?:\.\d+)*|[a-z]")  # llama-9, falcon-h1, gemma-3n
# Words of a name whose model has other shapes than its base, or whose base is said otherwise.
_OTHER_SHAPES = re.compile(
    r"vl|v|vlm|mm|ov|omni|ocr|\w*(?:vision|visual|multimodal|image|video|audio|speech|voice|tts|asr|llava"
    r"|vila|blip|ultravox|whisper|onevision|idefics|minicpm|internvl|smolvl|bunny|molmo|mamba|rwkv)\w*"
    r"|e|t|embed\w*|reward|rm|prm|orm|classif\w*|rerank\w*|colbert|e5|gte|bge|sts|gritlm|nli"
    r"|draft|eagle|medusa|speculator|dflash|mtp|moe|frankenmoe|pruned?|pruning|sheared|slim|minitron|shear\w*"
    r"|layers?|depth|upscaled?|expanded|passthrough|franken\w*|bitnet|diffusion|dllm|dream|tiny|mini"
    r"|random|dummy|test|debug|toy|tokenizer|vocab|fast|slerp"
    r"|chinese|japanese|korean|tamil|telugu|hindi|arabic|hebrew|thai|vietnamese|turkish|persian|russian"
    r"|greek|portuguese|indonesian|ja|jp|ko|zh|ar|ru|tr|vi|hi|th"
)
# What a quantised copy says: its weights are not its base's, however its name goes on.
_QUANTIZED = re.compile(
    r"gptq|awq|gg(uf|ml)|exl[23]|bnb|(?<!\d)[2-8][-_ ]?bit|(nv|mx)fp4|int[48]|fp8|w[48]a(8|16)"
)
_NO_BASE = (("llama",), ("qwen",))  # words that several generations share
_UNSIZED = ("phi-2", "phi-4", "phi-3-mini", "phi-3.5-mini", "phi-3-medium", "phi-4-mini", "mistral-nemo")


class _Known(NamedTuple):
    """One name of a row: the words before its size, the size, all words."""

    family: tuple[str, ...]
    size: str
    words: frozenset[str]
    row: str
    parameters: int
    is_own: bool  # the row's own family, not one of a model tuned from it


def base_of(name: str) -> str | None:
    """Return the model whose shapes a fine-tune of that name has; None where its name does not tell."""
    if _QUANTIZED.search(name.casefold()[:200]):
        return None
    words = _words(name)
    found, taken = _families(words)
    if len(found) > 1:  # Hermes-3-Llama-3.2-3B: a fine-tune's own name beside that of its base
        found = found - _of_tunes() or found
    sizes = {word for word in words if _SIZE.fullmatch(word)}
    rest = [word for at, word in enumerate(words) if at not in taken]
    if len(found) != 1 or len(sizes) > 1 or any(map(_OTHER_SHAPES.fullmatch, rest)):
        return None
    family = next(iter(found))
    fits = [one for one in _known() if one.family == family and _agrees(one, words, sizes)]
    if not fits or max(one.parameters for one in fits) > 1.01 * min(one.parameters for one in fits):
        return None
    return max(fits, key=lambda one: (len(one.words & {*words}), -len(one.words), -len(one.row))).row


def sizes_of(name: str) -> list[str]:
    """Return the sizes that the catalogue has of a family named alone (llama3.2), the smallest first."""
    family = tuple(_words(name))
    known = {one.size: one.parameters for one in _known() if one.family == family and one.size}
    return sorted(known, key=known.__getitem__)


def _agrees(one: _Known, words: Sequence[str], sizes: set[str]) -> bool:
    """Return whether a name states the size of this row, in all and active, or needs none and has none."""
    actives = {word for word in words if re.fullmatch(r"a\d+(?:\.\d+)?b", word)}
    own = {word for word in one.words if re.fullmatch(r"a\d+(?:\.\d+)?b", word)}
    if not actives <= own:
        return False
    if one.size:
        return sizes == {one.size}
    return all(abs(float(size[:-1]) * 1e9 / one.parameters - 1) < 0.06 for size in sizes if "x" not in size)


def _families(words: Sequence[str]) -> tuple[set[tuple[str, ...]], set[int]]:
    """Return the families that a name holds, the longest at each place, and the places of their words."""
    known = {one.family for one in _known()}
    longest = max(map(len, known))
    found: set[tuple[str, ...]] = set()
    taken: set[int] = set()
    for start in range(len(words)):
        for end in range(min(start + longest, len(words)), start, -1):
            held = tuple(words[start:end])
            if start not in taken and held in known:
                taken |= {*range(start, end)}
                unsaid = held in _NO_BASE or (end < len(words) and _OTHER_VERSION.fullmatch(words[end]))
                found.add((*held, "?") if unsaid else held)
                break
    return found, taken


def _words(name: str) -> list[str]:
    last = re.sub(r"(?<=\d)_(?=\d)", ".", name.casefold()[:200].rpartition("/")[2])
    last = re.sub(r"^l(?=3(\.\d)?-\d+b)", "llama-", last)  # L3-8B-Stheno
    return _TOKEN.findall(re.sub(r"^meta-(?=llama)", "", last))


@cache
def _known() -> tuple[_Known, ...]:
    return tuple(_read())


@cache
def _of_tunes() -> frozenset[tuple[str, ...]]:
    own = {one.family for one in _known() if one.is_own}
    return frozenset(one.family for one in _known()) - own


def _read() -> Iterator[_Known]:
    """Yield the sized names of every row; of a name that goes on after its row's own family, that family."""
    for line in lines_of(FILE):
        row = parse_json(line.partition(',"parameters_from"')[0] + "}", FILE)
        own: tuple[str, ...] = ()
        for alias in (row["name"], *row["aliases"]) if row["parameters"] else ():
            words = _words(alias)
            at = next((at for at, word in enumerate(words) if _SIZE.fullmatch(word)), None)
            if at or alias in _UNSIZED:
                family = tuple(words[:at])
                own = own or family
                family = own if family[: len(own)] == own else family
                size = words[at] if at else ""
                yield _Known(family, size, frozenset(words), row["name"], row["parameters"], family == own)
