"""The words of a shell script: quotes, variables, arrays, sums and here-documents, as far as its text tells.

What nothing tells (a variable that the script does not set, a command's output) stays as it is written.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from finegauge.errors import FileFormatError
from finegauge.formats import MAX_SCRIPT
from finegauge.formats.expansions import Read, between, calculated_text, changed

MAX_WORDS = 5_000  # of a command
MAX_VALUE, MAX_ARRAY = 16_384, 200_000  # characters, of one and of all elements
MAX_DOCUMENTS, MAX_NESTED = 50, 12
NAME = re.compile(r"[A-Za-z_]\w{0,63}|[0-9@*#?!$-]")
ASSIGNED = re.compile(r"([A-Za-z_]\w{0,63})(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(
    r"([!#]?)([A-Za-z_]\w{0,63}|\d{1,2}|[@*#])(?:\[([^\[\]]{1,80})\])?"
    r"(?:(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|[:@])(.*))?",
    re.DOTALL,
)
_IN_SUM = re.compile(r"\$\{[^{}]*\}|\$\([^()]*\)|\$?\b[A-Za-z_]\w*")  # a name that stands for its value
_STEP = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*(?:([-+*/%]?)=(?!=)(.*)|(\+\+|--))\s*", re.DOTALL)
_BRACKETS = re.compile(r"[{}()]")
_PLAIN = re.compile(r"[\w/.,:@%+-]{1,16000}")
_SPLIT = re.compile(r"(?:\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")  # what a command would print stays whole
_OF_ARRAY = re.compile(r'"\$(?:\{?@|\{\w+\[@)')  # no word where it has no elements
_SEPARATORS = "\n;&|()"
CLOSES = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "{": "}"}
PARTS = {"if", "while", "until", "{", "elif", "then", "else", "do", ";;", "esac", *CLOSES.values()}
_BEFORE_SUM = {*PARTS, "for", "!"} - {";;"}


class Words(ABC):
    """A text that is read word by word, with what its variables and arrays hold so far."""

    def __init__(self, name: str, arguments: Sequence[str], depth: int) -> None:
        """Begin with `arguments` as the script's own ($1, $2, ..., $@)."""
        self.name, self._depth = name, depth
        self._text, self._at = "", 0
        self._behind: dict[int, int] = {}  # of a line whose here-documents follow: where they end
        self.read: Read = lambda _: None  # a file beside the script
        self.variables: dict[str, str] = {"HOME": "~", "0": f"./{name}", "BASH_SOURCE[0]": f"./{name}"}
        self._arrays: dict[str, list[str]] = {"@": [*arguments], "*": [*arguments]}
        self._document, self._documents, self._arrays_read, self._appends = "", 0, 0, False

    @abstractmethod
    def _set(self, name: str, value: str) -> None:
        """Set a variable."""

    @abstractmethod
    def _printed(self, text: str) -> str:
        """Return what $(...) prints where its text tells; else the text itself."""

    @abstractmethod
    def _inside(self, text: str) -> "Words":
        """Return what reads another text with what is known here."""

    def _command(self) -> tuple[list[str], str]:
        """Return the words up to the next separator, and the file that its output goes to."""
        words: list[str] = []
        target, self._document, self._appends, held = "", "", False, self._arrays_read
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r":
                self._at += 1
            elif char == "#":
                self._at = self._end_of_line()
            elif self._text.startswith(";;", self._at):
                self._at += 0 if words else 2
                return words or [";;"], target
            elif char == "(" and self._text.startswith("((", self._at) and {*words} <= _BEFORE_SUM:
                words += ["((", self._balanced("((", "))")]
            elif char in _SEPARATORS:
                self._at = self._behind.get(self._at, self._at + 1)
                if words or char in "()" or self._arrays_read > held:
                    return words, target
            elif redirected := self._redirection():
                target = redirected if redirected != "-" else target
            else:
                words += self._word()
                if len(words) > MAX_WORDS:
                    raise FileFormatError(f"{self.name}: a line of more than {MAX_WORDS:,} words is refused.")
        return words, target

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _redirection(self) -> str:
        """Skip a redirection; return the file that is written, "-" for any other, "" where there is none."""
        found = re.compile(r"(\d{0,2}|&)(<<<|<<-?|>>|>\||[<>])(&\d?-?)?[ \t]*").match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        if found[3] or self._text[self._at : self._at + 1] in "\r\n":  # a placeholder's: PATH=<where>
            return "-"
        start = self._at
        word = " ".join(self._word())
        self._appends |= found[2] == ">>"
        if found[2] == "<":
            held = self.read(word)
            self._document = held[0][:MAX_SCRIPT] if held else f"$(cat {word})"
        if found[2] == "<<<":  # one word as the input
            self._document = word
            return "-"
        if found[2].startswith("<<"):
            quoted = self._text[start : start + 1] in "'\"\\"
            self._take_document(word, expanded=not quoted, indented=found[2] == "<<-")
            return "-"
        return word if found[2].startswith(">") and found[1] in ("", "1", "&") else "-"

    def _take_document(self, word: str, *, expanded: bool, indented: bool) -> None:
        """Take a here-document's lines, which stand after the command's own line."""
        self._documents += 1
        if self._documents > MAX_WORDS:  # turns of loops count
            raise FileFormatError(f"{self.name} has more than {MAX_WORDS:,} here-documents.")
        line_end = self._end_of_line()
        at, lines = self._behind.get(line_end, line_end + 1), list[str]()
        while at < len(self._text):
            end = self._text.find("\n", at)
            end = len(self._text) if end < 0 else end
            line = self._text[at:end].lstrip("\t") if indented else self._text[at:end]
            at = end + 1
            if line.strip("\r") == word:
                break
            lines.append(line)
        self._behind[line_end] = at
        body = "\n".join(lines) + "\n"
        self._document = self._expanded(body) if expanded else body

    def _word(self) -> list[str]:
        """Return the word that begins here; several where a variable or an array holds several."""
        text, parts = self._text, [""]
        start, quoted = self._at, False
        while self._at < len(text):
            char = text[self._at]
            if char == "(" and parts[-1].endswith("="):
                self._read_array(parts[-1])
                return parts[:-1]
            if char in " \t\r" + _SEPARATORS or (char in "<>" and self._at > start):
                break
            self._at += 1
            quoted |= char in "'\""
            parts = self._with(parts, char)
        if self._at == start:
            self._at += 1  # a bracket where no word can begin
        kept = parts[-1] or (quoted and parts == [""] and not _OF_ARRAY.match(text, start))
        return [part[:MAX_VALUE] for part in (parts if kept else parts[:-1])]

    def _with(self, parts: list[str], char: str) -> list[str]:
        """Return the words so far with what `char` begins put behind the last."""
        if char == "\\":
            more = [self._text[self._at : self._at + 1]]
            self._at += 1
        elif char == "'":
            more = [self._until("'")]
        elif char == '"':
            more = self._quoted()
            if len(more) > 1 and ASSIGNED.fullmatch(parts[-1]):  # cmd="torchrun ${ARGS[@]}" is one text
                more = [" ".join(more)]
        elif char in "$`":
            joined = " ".join(self._dollar(char))
            whole = joined.startswith("$(") or ASSIGNED.fullmatch(parts[-1]) is not None
            more = [joined] if whole else _SPLIT.findall(joined)
        else:
            plain = _PLAIN.match(self._text, self._at)
            more = [char + (plain[0] if plain else "")]
            self._at += len(more[0]) - 1
        if len(parts[-1]) > MAX_VALUE:
            raise FileFormatError(f"{self.name}: a word of more than {MAX_VALUE:,} characters is refused.")
        return [*parts[:-1], parts[-1] + more[0], *more[1:]] if more else parts

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at)
        if end < 0:
            raise FileFormatError(f"{self.name} has a quote that is never closed.")
        taken, self._at = self._text[self._at : end], end + 1
        return taken

    def _quoted(self) -> list[str]:
        """Return what stands in double quotes: one word, several of an array alone."""
        words, current, start = list[str](), "", self._at
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == '"':
                return words if not current and (words or "[@]" in self._text[start : self._at]) else [
                    *words, current
                ]  # fmt: skip
            if char == "\\" and self._text.startswith(('"', "\\", "$", "`"), self._at):
                current += self._text[self._at]
                self._at += 1
            elif char in "$`":
                held, parts = self._at, self._dollar(char)
                if len(parts) > 1 and not re.search(r"^\*|\[\*\]", self._text[held : self._at]):
                    words += [current + parts[0], *parts[1:-1]]
                    current = parts[-1]
                else:
                    current += " ".join(parts)
            else:
                current += char
            if len(current) > MAX_VALUE:
                break
        raise FileFormatError(f"{self.name} has a quote that is never closed.")

    def _read_array(self, assigned: str) -> None:
        """Read the elements of NAME=( ... ) or NAME+=( ... )."""
        self._at += 1
        self._arrays_read += 1
        elements: list[str] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            char = self._text[self._at]
            if char in " \t\r\n;&|":
                self._at += 1
            elif char == "#":
                self._at = self._end_of_line()
            else:
                elements += self._word()
            if len(elements) > MAX_WORDS:
                raise FileFormatError(f"{self.name}: a line of more than {MAX_WORDS:,} words is refused.")
        self._at += 1
        name = assigned.rstrip("=").rstrip("+")
        for place, one in enumerate(elements):
            if found := re.match(r"\[([^\[\]]{1,80})\]=", one):
                elements[place] = self.variables[f"{name}[{found[1]}]"] = one[found.end() :]
        before = self._arrays.get(name, []) if assigned.endswith("+=") else []
        self._arrays[name] = [*before, *elements][:MAX_WORDS]
        if sum(map(len, self._arrays[name])) > MAX_ARRAY:
            raise FileFormatError(f"{self.name}: an array of more than {MAX_ARRAY:,} characters is refused.")

    def _dollar(self, char: str) -> list[str]:
        """Return what a dollar sign or a backquote stands for, its text where nothing tells."""
        text = self._text
        if char == "`":
            inner = self._until("`")
            return [] if inner.lstrip()[:1] == "#" else [self._printed(inner)]
        following, end = text[self._at : self._at + 1], text.find("]", self._at)
        if following == "[" and end > 0:  # as sums were once written
            inner, self._at = text[self._at + 1 : end], end + 1
            return [self._sum(inner)]
        if following == "(":
            doubled = text.startswith("((", self._at)
            read, closing = (self._sum, "))") if doubled else (self._printed, ")")
            return [read(self._balanced("(" * len(closing), closing))]
        if following == "{":
            return self._parameter(self._balanced("{", "}"))
        name = NAME.match(text, self._at)
        self._at = name.end() if name else self._at
        return self._value(name[0]) if name else ["$"]

    def _balanced(self, opening: str, closing: str) -> str:
        """Return what stands between brackets."""
        self._at += len(opening)
        start, depth = self._at, 1
        for found in _BRACKETS.finditer(self._text, start, start + MAX_VALUE):
            depth += found[0] in opening
            depth -= found[0] in closing
            if depth + len(opening) <= 1:
                end = found.start()
                self._at = end + 1
                return self._text[start : end - len(closing) + 1]
        raise FileFormatError(f"{self.name} has a bracket that is never closed.")

    def _sum(self, text: str) -> str:
        """Return what a sum comes to, the variable set that it is given to."""
        if step := _STEP.fullmatch(text):
            sign = step[2] if step[4] is None else step[4][0]
            value = self._sum(f"{step[1]} {sign} ({step[3] or 1})" if sign else step[3])
            self._set(step[1], value)
            return value
        named = _IN_SUM.sub(lambda one: one[0] if one[0][0] == "$" else f"${one[0]}", text)
        return calculated_text(self._expanded(named))

    def _parameter(self, inside: str) -> list[str]:
        """Return the value of ${...}: with its default, changed, counted, or a part of it."""
        found, unread = _PARAMETER.fullmatch(inside), [f"${{{inside}}}"]
        if found is None:
            return unread
        mark, name, index, sign, word = found.groups(default="")
        held, listed = self._held(name, index), index in ("@", "*") or name in ("@", "*")
        if mark == "!" and listed:
            keyed = [key[len(name) + 1 : -1] for key in self.variables if key.startswith(f"{name}[")]
            return keyed or [*map(str, range(len(held or ())))]
        if mark == "!":
            held = self._held(held[0], "") if held else None
        elif mark == "#" and held is not None:
            return [str(len(held if listed else held[0]))]
        value = held
        if sign and sign[-1] in "-=+?":
            value = self._with_default(name, held, sign, word)
        elif listed and sign == ":" and held is not None:
            part = between(self._expanded(word), len(held))
            first = part.start - (name in ("@", "*")) if part else 0
            value = held[max(0, first) :][: part.stop - part.start] if part else None
        elif sign not in ("", "@"):
            by = [changed(one[:MAX_VALUE], sign, self._expanded(word)) for one in held or ()]
            value = None if held is None or None in by else [one for one in by if one is not None]
        return unread if value is None else value

    def _with_default(self, name: str, held: list[str] | None, sign: str, word: str) -> list[str] | None:
        """Return the value of ${name:-word}, =, + and ?."""
        unset = held is None or (sign[0] == ":" and held in ([], [""]))
        if sign[-1] == "?" or (sign[-1] != "+" and not unset):
            return held
        if sign[-1] == "=":
            self.variables[name] = self._expanded(word)
        return [] if sign[-1] == "+" and unset else [self._expanded(word)]

    def _held(self, name: str, index: str) -> list[str] | None:
        """Return the value of a variable, an array or one of its elements; None where nothing set it."""
        array, given = self._arrays.get(name), self._arrays["@"]
        if index not in ("", "@", "*"):
            place = self._expanded(index)
            if (known := self.variables.get(f"{name}[{place}]")) is not None:
                return [known]
            told = self._sum(place) if array else ""
            at = int(told) if re.fullmatch(r"-?\d{1,5}", told) else MAX_WORDS
            return [array[at]] if array and -len(array) <= at < len(array) else None
        if array is not None:
            return array
        if index:
            return [one for key, one in self.variables.items() if key.startswith(f"{name}[")] or None
        value = str(len(given)) if name == "#" else self.variables.get(name)
        if name.isdecimal() and 0 < int(name) <= len(given):
            value = given[int(name) - 1]
        return None if value is None else [value]

    def _value(self, name: str) -> list[str]:
        held = self._held(name, "")
        return [f"${name}"] if held is None else held

    def _expanded(self, text: str) -> str:
        if self._depth >= MAX_NESTED or not ("$" in text or "`" in text):
            return text.strip("\"'")
        inner = self._inside("")
        inner.variables, inner._arrays = self.variables, self._arrays
        inner._text = text.strip('"').replace('"', '\\"') + '"'
        return " ".join(inner._quoted())
