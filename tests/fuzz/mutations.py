"""How an input is spoiled: its bytes, the tree that it holds, the words of a command."""

import copy
import csv
import io
import json
from random import Random
from typing import Any

import yaml

from tests.properties.test_readers_fuzz import HOSTILE, paths_of, with_value

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
CONTROLS = (
    "\x1b[2J",
    "\x1b]0;x\x07",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\x7f",
    "\x85",
    "\u2028",
    "\x1b[31m",
    "\r",
)
NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 0.5, -0.0, 1e-320, 5e-324, 1e308, 2**31, 2**63, 10**30, 10**400, float("nan"), float("inf")),
    *(
        float("-inf"),
        "9" * 400,
        "1e999",
        "0x10",
        "\uff11\uff12",
        "1_000",
        "",
        "nan",
        "-",
        True,
        10**17,
        65537,
        3,
    ),
)
WORDS: tuple[Any, ...] = (
    *(
        None,
        [],
        {},
        [[]],
        [None],
        {"": None},
        "",
        " ",
        "x" * 3000,
        "é\u0301",
        "\ud800",
        "=1+1",
        "@SUM(A1)",
        "%s",
    ),
    *(
        "{0}",
        "../..",
        "/dev/zero",
        "/nonexistent/x",
        ".",
        "~",
        "-",
        "--help",
        "a=b",
        "http://127.0.0.1:9/",
        "auto",
    ),
)
SPOILT = (b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 9000, b"{'a':" * 3000, b"- " * 3000, b"null",
          b"NaN", b"[NaN]", b"1", b'"x"', b"[]", b"{}", b"a: &a [*a]", b"!!python/name:os.system", b"a,b\n\"",
          b"%", b"---\n---\n", b"<<: {a: 1}", b"{" + b'"a":1,' * 9000 + b'"a":1}', b"9" * 5000,
          b"\n" * 5000, b"," * 9000, b"[1," * 500, BOMB.encode())  # fmt: skip


def value(rng: Random) -> Any:
    """Return something that does not belong."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.6:
        return rng.choice(WORDS)
    if kind < 0.75:
        return copy.deepcopy(rng.choice(HOSTILE))
    if kind < 0.9:
        return f"a{rng.choice(CONTROLS)}b"
    deep: Any = rng.choice(NUMBERS)
    for _ in range(rng.choice((3, 23, 200))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def spoiled(content: bytes, name: str, rng: Random) -> bytes:
    """Return a file's content, spoiled."""
    kind = rng.random()
    if kind < 0.65 and (tree := _tree(content, name)) is not None:
        return _changed_tree(tree, name, rng)
    if kind < 0.7:
        return rng.choice(SPOILT)
    if kind < 0.75:
        text = content.decode("utf-8", "replace")
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "cp037")), "replace")
    return _changed_bytes(bytearray(content), rng)


def _tree(content: bytes, name: str) -> Any:
    try:
        if name.endswith((".json", ".ipynb")):
            return json.loads(content)
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in content.splitlines() if line.strip()]
        if name.endswith((".yaml", ".yml")):
            return yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if name.endswith(".csv"):
            return list(csv.reader(io.StringIO(content.decode())))
    except (ValueError, yaml.YAMLError):
        pass
    return None


def _changed_tree(tree: Any, name: str, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = paths_of(tree)
        if not places:
            tree = value(rng)
            break
        place = rng.choice(places)
        tree = _moved(tree, place, rng) if rng.random() < 0.3 else with_value(tree, place, value(rng))
    if name.endswith(".jsonl") and isinstance(tree, list):
        return "\n".join(map(json.dumps, tree)).encode()
    if name.endswith(".csv") and isinstance(tree, list):
        text = io.StringIO()
        for row in tree:
            cells = row if isinstance(row, list) else [row]
            csv.writer(text).writerow([one if isinstance(one, str | float) else repr(one) for one in cells])
        return text.getvalue().encode("utf-8", "surrogatepass")
    if name.endswith((".json", ".ipynb")) or rng.random() < 0.3:
        return json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    try:
        return str(yaml.safe_dump(tree, allow_unicode=True)).encode("utf-8", "surrogatepass")
    except RecursionError:
        return json.dumps(tree).encode()


def _moved(tree: Any, place: tuple[Any, ...], rng: Random) -> Any:
    """Return the tree without a value, with it twice, under another name, or in another's place."""
    tree = copy.deepcopy(tree)
    above = tree
    for key in place[:-1]:
        above = above[key]
    what, how = above[place[-1]], rng.randrange(4)
    if how == 0:
        del above[place[-1]]
    elif how == 1 and isinstance(above, list):
        above.extend([what] * rng.choice((1, 3000)))
    elif how == 2 and isinstance(above, dict):
        above[str(value(rng))[:300]] = above.pop(place[-1])
    else:
        others = paths_of(tree)
        other = rng.choice(others)
        if other[: len(place)] != place and place[: len(other)] != other:
            tree = with_value(tree, other, copy.deepcopy(what))
    return tree


def _changed_bytes(content: bytearray, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 2, 8, 40))):
        at, how = rng.randrange(len(content) + 1), rng.randrange(6)
        if how == 0:
            content[at : at + rng.choice((1, 10, 500))] = b""
        elif how == 1:
            content[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 1, 9))))
        elif how == 2 and content:
            content[at % len(content)] ^= 1 << rng.randrange(8)
        elif how == 3:
            content[at:at] = content[at : at + rng.choice((1, 20, 300))] * rng.choice((1, 2, 50))
        elif how == 4:
            content[at:at] = str(rng.choice(NUMBERS)).encode("utf-8", "surrogatepass")
        else:
            content[at:at] = rng.choice(
                (*CONTROLS, ":", "\n", "[", "{", '"', ",", "&a ", "*a", "!!", "#")
            ).encode()
    return bytes(content)


def word(rng: Random) -> str:
    """Return a word that a shell could hand to a command."""
    text = str(value(rng))[: rng.choice((20, 300, 5000))]
    return text.replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
