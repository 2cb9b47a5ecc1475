"""What a shell's expansions come to: sums, tests, ${name%pattern}, and what a command prints of a text alone.

Commands that ask the machine (nvidia-smi, date, scontrol) print what no text tells: None.
"""

import ast
import getopt
import json
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Any

from finegauge.documents import parse_yaml
from finegauge.errors import FileFormatError
from finegauge.formats.sheet import MAX_TEXT

UNSET = re.compile(r"\$[\w({@]|`")
Read = Callable[[str], tuple[str, str] | None]  # a file beside the script: its text and path
_MAX_PATTERN = 1024  # characters of a line that a pattern is looked for in
_SUM = re.compile(r"[\d\s()+*/%<>=!&|?:-]{1,200}")
_TESTS = ("[", "[[", "test", "]", "]]", "!")
_COMPARED = {
    "Eq": "eq",
    "NotEq": "ne",
    "Lt": "lt",
    "LtE": "le",
    "Gt": "gt",
    "GtE": "ge",
}  # of Python, of a test
_JOINS = {"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod"}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, of) for name, of in (*_JOINS.items(), *_COMPARED.items(), ("Pow", "pow"))
}
_REPLACED = re.compile(r"s([/|#,])(.{1,200}?)(?<!\\)\1(.*?)\1g?")  # sed's: one text by another
_COLUMNS = re.compile(r"\s*\{\s*print\s+([$\dNF,\s]{1,60}?);?\s*\}\s*")  # awk's
_TIDY = ("echo", "tr", "xargs")  # that leave a variable among words as it is
_PATH = re.compile(r"\s*\.?([\w.\"\[\]-]{1,200}?)\s*(?://\s*(.{1,100}))?\s*")  # jq's: .a.b[0] // default
_CASES: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


def joined(kind: ast.AST, left: Any, right: Any) -> Any:
    """Return two plain values joined by an operator; None where that cannot be."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    adds = isinstance(kind, ast.Add) and type(left) is type(right) and isinstance(left, str | list)
    if type(kind).__name__ not in _BINARY or not (numbers or adds):
        return None
    if numbers and (max(abs(left), abs(right)) > 1e15 or (isinstance(kind, ast.Pow) and right > 64)):
        return None
    if adds and len(left) + len(right) > MAX_TEXT:
        return None
    try:
        return _BINARY[type(kind).__name__](left, right)
    except (ZeroDivisionError, OverflowError):
        return None


def _calculated(node: ast.expr) -> Any:
    """Return the number that constants joined by operators make; None for anything else."""
    parts = [_calculated(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    value: Any = None
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = node.value
    elif None in parts:
        value = None
    elif isinstance(node, ast.UnaryOp):
        value = -parts[0] if isinstance(node.op, ast.USub) else not parts[0]
    elif isinstance(node, ast.BinOp):
        value = joined(node.op, *parts)
    elif isinstance(node, ast.Compare) and len(parts) == 2:
        value = joined(node.ops[0], *parts)
    elif isinstance(node, ast.BoolOp):
        value = all(parts) if isinstance(node.op, ast.And) else any(parts)
    elif isinstance(node, ast.IfExp):
        value = parts[1] if parts[0] else parts[2]
    return value


def _number(expression: str) -> Any:
    try:
        return _calculated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calculated_text(expression: str) -> str:
    """Return the value of a shell's whole numbers, compared or joined by operators; else the expression."""
    if _SUM.fullmatch(expression):
        chosen = re.sub(r"(.+)\?(.+):(.+)", r"(\2) if (\1) else (\3)", expression.strip())
        python = chosen.replace("/", "//").replace("&&", " and ").replace("||", " or ")
        value = _number(re.sub(r"!(?!=)", " not ", python))
        if isinstance(value, int):
            return str(int(value))
    return f"$(({expression}))"


def decided(words: Sequence[str]) -> bool | None:
    """Return what a shell's test of constants comes to; None where the text does not tell, and of no test."""
    inner = [word for word in words if word not in _TESTS]
    alone = len(inner) == 1 < len(words)
    if alone or (len(inner) in (2, 3) and (inner[0] in ("-z", "-n") or inner[-1] == "")):
        inner = [
            "" if re.fullmatch(r"\$\{?(\w+|\w+:-)\}?", word) else word for word in inner
        ]  # set by nobody
    found: bool | None = None
    if words and words[0] in ("true", "false"):
        found = words[0] == "true"
    elif len(inner) == len(words) or any("$" in word or "`" in word for word in inner if word[-1:] != "$"):
        return None
    elif len(inner) == 1:
        found = inner[0] != ""
    elif len(inner) == 2 and inner[0] in ("-z", "-n"):
        found = (inner[1] == "") is (inner[0] == "-z")
    elif len(inner) == 3 and inner[1] in ("=", "==", "!="):
        same = fnmatchcase(inner[0], inner[2]) if "]" not in words else inner[0] == inner[2]
        found = same is (inner[1] != "!=")
    elif len(inner) == 3 and inner[1] == "=~":
        found = re.search(re.escape(inner[2]).replace(r"\^", "^").replace(r"\$", "$"), inner[0]) is not None
        found = found if found or not re.search(r"[][.*+?|()\\]", inner[2]) else None
    elif len(inner) == 3 and inner[1][1:] in _COMPARED.values() and (inner[0] + inner[2]).isdecimal():
        found = getattr(operator, inner[1][1:])(int(inner[0][:15]), int(inner[2][:15]))
    return not found if found is not None and "!" in words else found


def changed(value: str, mark: str, word: str) -> str | None:
    """Return a value as ${name#word}, %, / and ^ change it, or cut as ${name:from:length} cuts it."""
    if mark in _CASES:
        return _CASES[mark](value)
    if mark == ":" or len(value) > _MAX_PATTERN:
        cut = between(word, len(value)) if mark == ":" else None
        return None if cut is None else value[cut]
    pattern, _, by = word.partition("/") if mark[0] == "/" else (word, "", "")
    found = translate(pattern.replace("[^", "[!").replace("\\", "")).rpartition(")")[0] + ")"
    if mark[0] == "/":
        return re.sub(found, by.replace("\\", "\\\\"), value, count=mark == "/")
    ends = range(len(value) + 1) if mark in ("#", "%%") else range(len(value), -1, -1)
    for at in ends:
        if mark[0] == "#" and re.fullmatch(found, value[:at]):
            return value[at:]
        if mark[0] == "%" and re.fullmatch(found, value[at:]):
            return value[:at]
    return value


def between(word: str, length: int) -> slice | None:
    """Return the part that ":from:length" names."""
    told = re.fullmatch(r"\s*(-?\d{1,5})(?::(-?\d{1,5}))?", word)
    if told is None:
        return None
    begin = int(told[1]) if int(told[1]) >= 0 else max(0, length + int(told[1]))
    size = length if told[2] is None else int(told[2])
    return slice(begin, begin + size if size >= 0 else length + size)


def output(words: Sequence[str], fed: str, read: Read) -> str | None:
    """Return what a command prints of its words and of the text that it is fed; None where that asks more."""
    name = words[0].rpartition("/")[2]
    known = _PRINTS.get("python" if re.fullmatch(r"python[\d.]*", name) else name)
    texts = [fed] if name in ("awk", "grep", "jq", "yq") else [] if name == "sed" else [*words[1:], fed]
    unset = any(map(UNSET.search, texts)) and not (name in _TIDY and " " in max(texts, key=len, default=""))
    if known is None or unset:
        return "" if decided(words) is not None else None
    try:
        return known([*words[1:]], fed, read)
    except (ValueError, LookupError, TypeError, re.error, getopt.GetoptError, FileFormatError):
        return None


def _told(rest: list[str], options: str) -> tuple[dict[str, str], list[str]]:
    told, others = getopt.gnu_getopt(rest, options)
    return {name[1:]: value for name, value in told}, others


def _text(named: Sequence[str], fed: str, read: Read) -> str:
    """Return the text of files, or what is fed where none is named."""
    found = [read(name) for name in named]
    if None in found:
        raise ValueError(named)
    return "".join(one[0] for one in found if one is not None) if named else fed


def _printf(rest: list[str], fed: str, read: Read) -> str:
    rest = rest[1:] if rest[0] == "--" else rest
    form, given = rest[0].replace("\\n", "\n"), rest[1:]
    marks = re.findall(r"%[-0]?\d{0,3}[sd]", form)
    turns = range(0, max(1, len(given)), max(1, len(marks)))
    parts = [[*given[at : at + len(marks)], *[""] * len(marks)][: len(marks)] for at in turns]
    filled = [
        [int(one or 0) if mark[-1] == "d" else one for mark, one in zip(marks, part, strict=True)]
        for part in parts
    ]
    return "".join(form % tuple(part) for part in filled)


def _cut(rest: list[str], fed: str, read: Read) -> str:
    told, files = _told(rest, "d:f:c:s")
    mark, lines = told.get("d", "\t"), _text(files, fed, read).splitlines()
    first, _, last = (told.get("f") or told["c"]).partition("-")
    asked = [int(one) - 1 for one in first.split(",")] if "-" not in (told.get("f") or told["c"]) else []
    part = slice(int(first or 1) - 1, int(last) if last else None)
    held = [line.split(mark) if "f" in told else [*line] for line in lines]
    cut = [[one[at] for at in asked if at < len(one)] if asked else one[part] for one in held]
    return "\n".join((mark if "f" in told else "").join(one) for one in cut)


def _tr(rest: list[str], fed: str, read: Read) -> str:
    told, sets = _told(rest, "dsc")
    one, other = (part.replace("\\n", "\n") for part in [*sets, ""][:2])
    if "d" in told:
        return re.sub(f"[{'^' * ('c' in told)}{re.escape(one)}]", "", fed)
    if re.search(r"a-z|lower", one + other) and re.search(r"A-Z|upper", one + other):
        return fed.upper() if re.search(r"A-Z|upper", other) else fed.lower()
    kept = re.sub(f"([{re.escape(one)}])\\1+", r"\1", fed) if "s" in told else fed
    return kept.translate(str.maketrans(one, other.ljust(len(one), other[-1]))) if other else kept


def _lines(rest: list[str], fed: str, read: Read, *, last: bool = False) -> str:
    told, files = _told([f"-n{one[1:]}" if re.fullmatch(r"-\d+", one) else one for one in rest], "n:q")
    lines, count = _text(files, fed, read).splitlines(), int(told.get("n", 10))
    return "\n".join(lines[-count:] if last else lines[:count])


def _wc(rest: list[str], fed: str, read: Read) -> str:
    told, files = _told(rest, "lwcm")
    text = _text(files, fed, read)
    parts = text.splitlines() if "l" in told else text.split() if "w" in told else text
    return " ".join([str(len(parts)), *files])


def _awk(rest: list[str], fed: str, read: Read) -> str | None:
    told, others = _told(rest, "F:")
    if begun := re.fullmatch(r"\s*BEGIN\s*\{\s*print\s+([^{},$]{1,200}?);?\s*\}\s*", others[0]):
        value = _number(begun[1].replace("int(", "("))
        return None if value is None else f"{int(value) if 'int(' in begun[1] else value:.6g}"
    if not (asked := _COLUMNS.fullmatch(others[0])):
        return None
    held = [line.split(told.get("F")) for line in _text(others[1:], fed, read).splitlines()]

    def column(line: list[str], word: str) -> str:
        at = word.replace("$", "").replace("NF", str(len(line)))
        return (line[int(at) - 1] if int(at) else " ".join(line)) if word[0] == "$" else at

    return "\n".join(
        " ".join(column(one, word) for word in re.split(r"[\s,]+", asked[1].strip())) for one in held
    )


def _seq(rest: list[str], fed: str, read: Read) -> str:
    told, numbers = _told(rest, "s:w") if rest[0][:2] in ("-s", "-w") else ({}, rest)
    first, step, last = (["1", "1", *numbers], [numbers[0], "1", numbers[-1]], numbers)[len(numbers) - 1]
    held = range(int(first), int(last) + (1 if int(step) > 0 else -1), int(step))
    return told.get("s", "\n").join(map(str, held[:1000]))


def _key(rest: list[str], fed: str, read: Read) -> str | None:
    """Return what jq or yq print of a path of keys."""
    words = [word for word in rest if word[:1] != "-" and word not in ("eval", "e")]
    asked = _PATH.fullmatch(words[0])
    keys = parse_yaml(_text(words[1:], fed, read), words[0])
    if asked is None or not isinstance(keys, dict):
        return None
    value: Any = keys
    for part in re.findall(r"[\w-]+", asked[1]):
        value = value[int(part)] if isinstance(value, list) else (value or {}).get(part)
    if value in (None, False) and asked[2]:
        value = json.loads(asked[2])
    return value if isinstance(value, str) else json.dumps(value)


def _python(rest: list[str], fed: str, read: Read) -> str | None:
    """Return what Python prints of a sum: python -c "print(8 * 4)"."""
    asked = re.fullmatch(r"\s*print\((.*)\);?\s*", rest[1]) if rest[:1] == ["-c"] else None
    value = _number(asked[1].replace("int(", "(")) if asked else None
    return None if value is None else str(int(value) if asked and "int(" in asked[1] else value)


def _sum(expression: str) -> str | None:
    found = calculated_text(expression)
    return None if UNSET.search(found) else found


def _pattern(text: str, lines: Sequence[str], *, extended: bool = False) -> re.Pattern[str]:
    """Return a pattern of sed's and grep's as Python has it; a ValueError for one that would take long."""
    grouped = re.sub(r"([()])", r"\\\1", text) if extended else text
    grouped = grouped.replace(r"\(", "\1").replace(r"\)", "\2")
    plain = re.escape(grouped.replace("\\", "")).replace(r"\.\*", ".*").replace("\1", "(").replace("\2", ")")
    of_class = re.compile(r"\\\[((?:\\\^)?[\w\\-]{1,40})\\\](?:\\([*+]))?")
    plain = of_class.sub(lambda one: "[" + one[1].replace("\\", "") + "]" + (one[2] or ""), plain)
    repeated = len(re.findall(r"[.\]][*+]", plain))
    if repeated > 1 or (repeated and max(map(len, lines), default=0) > _MAX_PATTERN):
        raise ValueError(text)
    return re.compile(re.sub(r"^\\\^|\\\$$", lambda found: found[0][1:], plain))


def _grep(rest: list[str], fed: str, read: Read) -> str:
    told, (asked, *files) = _told(rest, "voEcPqi")
    lines = _text(files, fed, read).splitlines()
    found = _pattern(asked, lines)
    kept = [one for one in lines if (found.search(one) is None) is ("v" in told)]
    kept = [hit for line in lines for hit in found.findall(line)] if "o" in told else kept
    return str(len(kept)) if "c" in told else "\n".join(kept)


def replaced(text: str, words: Sequence[str]) -> str:
    """Return a text as sed's words change it: texts by others, and `.*`; no further patterns."""
    lines = text.split("\n")
    for change in filter(None, map(_REPLACED.fullmatch, words)):
        found = _pattern(change[2], lines, extended=not {"-E", "-r"}.isdisjoint(words))
        by = re.sub(r"\\(?!\d)", r"\\\\", change[3])
        lines = [found.sub(by, line) for line in lines]
    return "\n".join(lines)


_PRINTS: Mapping[str, Callable[[list[str], str, Read], str | None]] = {
    "echo": lambda rest, fed, read: " ".join(rest[rest[:1] in (["-n"], ["-e"], ["-ne"]) :]),
    "printf": _printf,
    "cut": _cut,
    "tr": _tr,
    "wc": _wc,
    "head": _lines,
    "tail": lambda rest, fed, read: _lines(rest, fed, read, last=True),
    "awk": _awk,
    "grep": _grep,
    "sed": lambda rest, fed, read: replaced(fed, rest),
    "seq": _seq,
    "basename": lambda rest, fed, read: os.path.basename(rest[0].rstrip("/")).removesuffix([*rest, ""][1]),
    "dirname": lambda rest, fed, read: os.path.dirname(rest[-1].rstrip("/")) or ".",
    "realpath": lambda rest, fed, read: rest[-1],
    "readlink": lambda rest, fed, read: rest[-1],
    "expr": lambda rest, fed, read: _sum(" ".join(rest).replace("\\", "")),
    "bc": lambda rest, fed, read: _sum(re.sub(r"scale\s*=\s*0\s*;", "", fed)),
    "cat": _text,
    "jq": _key,
    "yq": _key,
    "xargs": lambda rest, fed, read: " ".join(fed.split()) if not rest else None,
    "python": _python,
}
