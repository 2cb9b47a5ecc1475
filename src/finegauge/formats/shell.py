"""The commands of a shell script, as text: variables, arrays and here-documents followed, nothing run.

What only a shell could work out (a command's output, a variable that the script does not set) stays in the
words as it is written, with its dollar sign. Of a loop the first turn is read. A branch whose test the text
decides the other way is left out; a variable that two other branches set differently counts as not set.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile

from finegauge.errors import FileFormatError
from finegauge.formats.blocks import Block, all_of, fits, not_of
from finegauge.formats.expansions import Read, between, calculated_text, changed, decided, output
from finegauge.formats.launchers import WORKING, of_engine
from finegauge.records import NamedTuple

MAX_WORDS = 5_000  # of a command
MAX_SCRIPT = 400_000  # characters
_MAX_VALUE, _MAX_ARRAY = 16_384, 200_000  # characters, of one and of all elements
_MAX_DOCUMENTS, _MAX_COMMANDS, _MAX_NESTED, _MAX_CALLS, _MAX_FUNCTIONS = 50, 5_000, 12, 200, 200
_FUNCTION = re.compile(r"(?m)^(?:function[ \t]+)?([A-Za-z_]\w{0,63})[ \t]*\([ \t]*\)[ \t]*\n?\{([^\n]*)")
_FIRST = re.compile(
    r"(?:^|[;&|()`!]|\b(?:then|do|else|if|while|until)\b)[ \t]*([A-Za-z_]\w{0,63})(?![ \t]*\()(?=[\s;&|)`]|$)",
    re.MULTILINE,
)  # the word of a command
_NAME = re.compile(r"[A-Za-z_]\w{0,63}|[0-9@*#?!$-]")
_ASSIGNED = re.compile(r"([A-Za-z_]\w{0,63})(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(
    r"([!#]?)([A-Za-z_]\w{0,63}|\d{1,2}|[@*#])(?:\[([^\[\]]{1,80})\])?"
    r"(?:(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|[:@])(.*))?",
    re.DOTALL,
)
_IN_SUM = re.compile(r"\$\{[^{}]*\}|\$\([^()]*\)|\$?\b[A-Za-z_]\w*")  # a name that stands for its value
_STEP = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*(?:([-+*/%]?)=(?!=)(.*)|(\+\+|--))\s*", re.DOTALL)
_KEYED = re.compile(r"([A-Za-z_]\w{0,63})\[([^\[\]=]{1,80})\](\+?)=(.*)", re.DOTALL)  # MODELS[small]=...
# A file whose lines are taken as the script's own: source FILE, export $(grep -v '^#' .env | xargs)
_SOURCED = re.compile(r"(?:source|\.) (\S+)|\$\((?:cat|grep|egrep|sed|xargs)\b.*?([\w./~-]*\.env)[ |'\")].*")
_DECLARE, _BRACKETS = {"export", "declare", "local", "readonly", "typeset", "env"}, re.compile(r"[{}()]")
_LOCAL = ("local", "declare", "typeset")  # in a function
_PLAIN = re.compile(r"[\w/.,:@%+-]{1,16000}")
# A here-document in the place of a file's name, --config_file <(cat <<EOF, as one that is written before
_AS_FILE = re.compile(
    r"(?ms)^([^\n]*?)<\(\s*cat\s+(<<-?\s*(['\"]?)(\w+)\3)[ \t]*\n(.*?\n[ \t]*\4)[ \t]*\n\s*\)"
)
_WRITTEN = r"cat > document_\4 \2\n\5\n\1document_\4"
_CLOSES = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "{": "}"}
_PARTS = {"if", "while", "until", "{", "elif", "then", "else", "do", ";;", "esac", *_CLOSES.values()}
_BEFORE_SUM = {*_PARTS, "for", "!"} - {";;"}
_HANDS_ON = frozenset(("tmux", "screen", "ssh", "sbatch", "bsub", "gcloud", "wsl"))  # a text is a command
_IGNORED = {"time", "exec", "nohup", "sudo", "command", "!"}
_SPLIT = re.compile(r"(?:\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")  # what a command would print stays whole
_OF_ARRAY = re.compile(r'"\$(?:\{?@|\{\w+\[@)')  # no word where it has no elements
_SEPARATORS = "\n;&|()"


class Command(NamedTuple):
    """One command of a script."""

    words: tuple[str, ...]
    environment: Mapping[str, str]  # what the script had set when it came to the command
    document: str = ""  # what a here-document gives it to read


def _functions(text: str, asked: Sequence[str], *, whole: bool) -> tuple[dict[str, str], str]:
    """Return the functions that a script calls, and the script without them; others stay where they stand.

    Of a file that is taken in (`whole`) all are, and those that the script is `asked` for.

    They are laid out as people do it: on one line, or closed by a brace at the margin.
    """
    closing = [found.start() for found in re.finditer(r"^\}", text, re.MULTILINE)]
    called, found, parts, at = {*_FIRST.findall(text), *asked}, dict[str, str](), list[str](), 0
    for head in _FUNCTION.finditer(text):
        name, line, last = head[1], head[2].rstrip(" \t\r;"), bisect_left(closing, head.end())
        unread = not whole and name not in called
        if head.start() < at or unread or (last == len(closing) and line[-1:] != "}"):
            continue
        end = head.end() if line[-1:] == "}" else closing[last] + 1
        found[name] = line[:-1] if line[-1:] == "}" else text[head.start(2) : closing[last]]
        parts, at = [*parts, text[at : head.start()], "\n"], end
        if len(found) == _MAX_FUNCTIONS:
            break
    return found, "".join([*parts, text[at:]])


class Shell:
    """One script, read from the first command to the last."""

    def __init__(self, text: str, name: str, arguments: Sequence[str] = (), *, depth: int = 0) -> None:
        """Begin with `arguments` as the script's own ($1, $2, ..., $@)."""
        if len(text) > MAX_SCRIPT:
            raise FileFormatError(f"{name} is too long a script; at most {MAX_SCRIPT:,} characters are read.")
        self.name = name
        self.files: dict[str, str] = {}  # that the script writes by here-documents
        self.read: Read = lambda _: None  # a file beside the script
        self._functions: dict[str, str] = {}
        self._calls = [0, 0]  # of all shells of a script, and turns of their loops
        self._text, self._at, self._begin = "", 0, 0
        self._behind: dict[int, int] = {}  # of a line whose here-documents follow: where they end
        self._include(text, arguments[:1])
        self._depth = depth
        self._blocks: list[Block] = []
        self._unclear = set[str]()  # variables that branches set to one value and to another
        self._locals = set[str]()  # of a function
        self._before: tuple[bool | None, str] = None, ""  # what a test came to, and "&&" or "||" behind it
        self.variables: dict[str, str] = {"HOME": "~", "0": f"./{name}", "BASH_SOURCE[0]": f"./{name}"}
        self._arrays: dict[str, list[str]] = {"@": [*arguments], "*": [*arguments]}
        self._document, self._documents, self._arrays_read = "", 0, 0
        self._separator, self._fed, self._letters, self._appends = "", "", "", False

    def _include(self, text: str, asked: Sequence[str] = (), *, whole: bool = False) -> None:
        """Put a text where the script is read."""
        lines = re.sub(r"(?m)^([ \t]*#.*?)\\+\r?$", r"\1", text)  # a comment ends with its line
        functions, lines = _functions(lines, asked, whole=whole)
        self._functions |= functions
        joined = re.sub(
            r"\\[ \t]*\r?\n|[ \t][\^`][ \t]*\r?\n(?=[ \t]*-)", " ", lines
        )  # cmd's and PowerShell's too
        joined = _AS_FILE.sub(_WRITTEN, joined) if "<(" in joined else joined
        self._text = f"{self._text[: self._at]}{joined}{self._text[self._at :]}"
        later = len(joined)
        self._behind = {
            at + later * (at > self._at): end + later * (at > self._at) for at, end in self._behind.items()
        }

    def _inside(self, text: str, arguments: Sequence[str] = ()) -> "Shell":
        """Return a shell that reads another text with what is known here."""
        inner = Shell(text, self.name, arguments, depth=self._depth + 1)
        inner._functions |= {name: self._functions[name] for name in self._functions}
        inner._calls, inner.read, inner.files = self._calls, self.read, self.files
        inner.variables = {**inner.variables, **self.variables}
        inner._arrays = {**self._arrays, **(inner._arrays if arguments else {})}
        return inner

    def commands(self) -> Iterator[Command]:
        """Yield the commands in the order in which they stand.

        Raises: FileFormatError for a quote that is never closed, or for too many words.
        """
        for _ in range(_MAX_COMMANDS):
            if self._at >= len(self._text):
                return
            arrays = {**self._arrays}
            self._begin = self._at
            words, target = self._command()
            skipped = self._is_skipped()
            self._separator = self._text[self._at - 1 : self._at + 1]
            self._document, self._fed = self._document or self._fed, ""
            words = self._followed(words, self._separator)
            if skipped or not self._is_live():
                self._arrays = arrays
            if not self._is_live():
                continue
            environment = self._assigned(words)
            if words and self._separator[:1] == "|" and self._separator != "||":
                self._fed = (output(words, self._document, self.read) or "")[:_MAX_VALUE]
            if not words or self._kept(words, target, environment.get("IFS", "").strip() or None):
                continue
            if words[0] in self._functions and self._depth < _MAX_NESTED:
                yield from self._called(words, environment)
            else:
                python = re.search(r"(^|/)python[\d.]*$", words[0]) and "-c" in words[1:-1]
                yield Command(tuple(words), environment, words[-1] if python else self._document)
                yield from () if python else self._inner(words, environment)
        raise FileFormatError(f"{self.name} has more than {_MAX_COMMANDS:,} commands.")

    def _take(self, names: Sequence[str], text: str, separator: str | None) -> None:
        """Give a text's parts to the names that `read` has: the last takes the rest, an array all."""
        asked = [name for name in names if name.isidentifier()]
        if asked and any(re.fullmatch(r"-\w*a", name) for name in names):
            self._arrays[asked[-1]] = text.split(separator)
        else:
            self.variables |= zip(asked, text.split(separator, len(asked) - 1), strict=False)

    def _kept(self, words: list[str], target: str, separator: str | None) -> bool:
        """Return whether a command only sets what later ones use: a variable, a file that is written."""
        if words[0] in ("((", "let"):
            self._sum(" ".join(words[1:]))
        elif words[0] == "read" and self._document:
            self._take(words[1:], self._document.strip()[:_MAX_VALUE], separator)
        elif (
            words[:2] == ["printf", "-v"]
            and (text := output(["printf", *words[3:]], "", self.read)) is not None
        ):
            self._set(words[2], text)
        elif words[0] in ("sed", "envsubst", "cat", "tee", "echo", "printf", "jq", "yq", "cp"):
            return self._written(words, target)
        elif words[0] == "shift" or (words[0] == "set" and "--" in words):
            count = int(words[1]) if words[1:] and words[1].isdecimal() else 1
            held = self._arrays["@"] if words[0] == "shift" else words[words.index("--") :]
            self._arrays |= dict.fromkeys("@*", held[count:])
        elif words[0] == "break" and all(block.live for block in self._blocks):
            for block in reversed(self._blocks):
                block.live = False
                if block.closes == "done":
                    block.again = None
                    break
        elif told := _SOURCED.match(" ".join(words[:20])[:500]):
            self._documents += 1
            if (found := self.read(told[1] or told[2])) and self._documents <= _MAX_DOCUMENTS:
                self._include(f"\n{found[0][:MAX_SCRIPT]}\n", whole=True)
        else:
            return False
        return True

    def _written(self, words: list[str], target: str) -> bool:
        """Return whether a command writes a file whose text is told, and keep that text."""
        names = [word for word in words[1:] if word[:1] != "-"]
        if names and (words[0] in ("tee", "cp") or (words[0] == "sed" and "-i" in words)):
            target = names[-1]
        if not target:
            return False
        self._documents += 1
        held = self._document
        if (words[0] == "sed" and not held) or words[0] == "cp":
            found = self.read(words[-2] if words[0] == "cp" else words[-1])
            held = found[0][:MAX_SCRIPT] if found else ""
        if words[0] == "envsubst":
            held = re.sub(r"\$\{?(\w{1,64})\}?", lambda one: self.variables.get(one[1], one[0]), held)
        elif words[0] not in ("tee", "cp") and not (words[0] == "cat" and held):
            held = output(words, held, self.read) or ""
        if held and self._documents <= _MAX_DOCUMENTS:
            name, mark = WORKING.sub("", target), "" if words[0] in ("cat", "tee", "cp") else "\n"
            self.files[name] = (self.files.get(name, "") if self._appends else "") + held + mark
        return True

    def _called(self, words: list[str], environment: Mapping[str, str]) -> Iterator[Command]:
        """Yield the commands of a function that is called with arguments."""
        self._calls[0] += 1
        if self._calls[0] > _MAX_CALLS:
            raise FileFormatError(f"{self.name} calls functions more than {_MAX_CALLS} times.")
        inner = self._inside(self._functions[words[0]])
        inner._arrays |= {"@": words[1:], "*": words[1:]}
        inner.variables |= environment
        yield from inner.commands()
        for name in {*inner.variables} - inner._locals:
            if inner.variables[name] != self.variables.get(name, environment.get(name)):
                self._set(name, inner.variables[name])
        self._arrays |= {
            name: inner._arrays[name] for name in inner._arrays if name not in {"@", "*", *inner._locals}
        }

    def _is_skipped(self) -> bool:
        """Return whether the test before decides that the next command is not run."""
        answer, joined = self._before
        return bool(joined) and answer is (joined == "||")

    def _is_live(self) -> bool:
        return all(block.live is not False for block in self._blocks)

    def _followed(self, words: list[str], separator: str) -> list[str]:
        """Follow the words that part a script into blocks; return the command behind them, if it is read."""
        turned = False
        while words and (words[0] in _PARTS or words[0] in _IGNORED):
            turned |= words[0] == "!"
            self._part(words[0])
            words = words[1:]
        if words[:1] == ["case"] and words[2:3] == ["in"]:
            self._blocks.append(Block("esac", live=self._is_live(), word=words[1]))
            words = words[3:]
        block = self._blocks[-1] if self._blocks else None
        if block is not None and block.patterns is not None:
            block.patterns += words
            if separator[:1] == ")" and block.patterns:
                block.enter(not_of(all_of([not_of(fits(block.word, one)) for one in block.patterns])))
                block.patterns = None
            return []
        operator_ = separator if separator in ("&&", "||") else ""
        if not words:  # behind a group
            self._before = self._before[0], operator_
            return []
        answer, skipped = self._before[0], self._is_skipped()
        if not skipped:
            answer = not_of(self._decided(words)) if turned else self._decided(words)
        if block is not None:
            block.tests.append(None if skipped else answer)
            block.joined.append(separator)
        self._before = answer, operator_
        if words[0] in ("for", "select"):
            self._loop(words)
            return []
        return [] if skipped else words

    def _decided(self, words: list[str]) -> bool | None:
        """Return what a test, a sum or getopts comes to; None where the text does not tell."""
        if words[0] == "((":
            found = self._sum(words[1])
            return found != "0" if re.fullmatch(r"-?\d+", found) else None
        return self._option(*words[1:3]) if words[0] == "getopts" and len(words) > 2 else decided(words)

    def _option(self, known: str, name: str) -> bool:
        """Take the next of the script's own options, as getopts does; return whether there is one."""
        given, at = self._arrays["@"], int(self.variables.setdefault("OPTIND", "1"))
        word = given[at - 1] if at <= len(given) else ""
        letters = self._letters or (word[1:] if re.match("-[^-]", word) else "")
        letter, self._letters = letters[:1] or "?", letters[1:]
        if f"{letter}:" in known:
            at += not self._letters
            self.variables["OPTARG"] = self._letters or "".join(given[at - 1 : at])
            self._letters = ""
        self.variables |= {name: letter if letter in known else "?", "OPTIND": str(at + (not self._letters))}
        return bool(letters)

    def _loop(self, words: list[str]) -> None:
        """Begin a loop over words, or one that counts."""
        live, turns = self._is_live(), [] if words[0] == "select" else words[3:]
        if words[1] == "((":
            first, test, step = (*words[2].split(";"), "", "")[:3]
            if live:
                self._sum(first)
                live = self._decided(["((", test]) is not False

            def again() -> bool:
                self._sum(step)
                return self._decided(["((", test]) is True
        else:
            turns = turns if "in" in words[2:3] else self._arrays["@"]
            left = iter(turns)

            def again() -> bool:
                value = next(left, None)
                self.variables |= {words[1]: value} if value is not None else {}
                return value is not None

            if live and turns:
                again()
        self._blocks.append(Block("done", live=live, begin=self._at, again=again))

    def _sum(self, text: str) -> str:
        """Return what a sum comes to, the variable set that it is given to."""
        if step := _STEP.fullmatch(text):
            sign = step[2] if step[4] is None else step[4][0]
            value = self._sum(f"{step[1]} {sign} ({step[3] or 1})" if sign else step[3])
            self._set(step[1], value)
            return value
        named = _IN_SUM.sub(lambda one: one[0] if one[0][0] == "$" else f"${one[0]}", text)
        return calculated_text(self._expanded(named))

    def _part(self, word: str) -> None:
        """Open, part or close a block."""
        block = self._blocks[-1] if self._blocks else None
        if word in _CLOSES:
            live, begin, held = (
                self._is_live() and not self._is_skipped(),
                self._begin,
                len(self._arrays["@"]),
            )
            block = Block(_CLOSES[word], live=live, begin=begin)
            if word == "while":
                block.again = partial(self._turns, block, held, {**self.variables})
            self._blocks.append(block)
            self._before = None, ""
        elif block is None:
            return
        elif word == block.closes:
            self._close(block)
        elif word == "elif":
            block.ask()
        elif word == "then":
            block.enter(block.answer())
        elif word == "do" and block.closes == "done" and block.tests:
            block.sure = block.answer() is True
            block.enter(block.answer() is not False)
        elif word == "else":
            if block.live and block.left:  # no "then" was met
                raise FileFormatError(f"{self.name} has branches of fish; name the command itself, after --.")
            block.enter(True)
        elif word == ";;" and block.closes == "esac":
            block.live, block.patterns = False, []

    def _close(self, block: Block) -> None:
        """Leave a block; of a loop over arguments come to the next one."""
        self._blocks.pop()
        self._before = block.live, ""
        turns = self._calls[1] < _MAX_CALLS and block.again is not None
        if block.live and turns and block.again is not None and block.again():
            self._calls[1] += 1
            self._at, block.tests = block.begin, []
            self._blocks += [] if isinstance(block.again, partial) else [block]

    def _turns(self, block: Block, given: int, known: Mapping[str, str]) -> bool:
        """Return whether a loop turns again: over arguments, or as long as its test is decided and new."""
        return len(self._arrays["@"]) not in (0, given) or (block.sure and known != self.variables)

    def _inner(self, words: list[str], environment: Mapping[str, str]) -> Iterator[Command]:
        """Yield the commands of a text that a command is told to run: bash -c "...", eval "..."."""
        last, of = words[-1], words[0].rpartition("/")[2]
        told = any(a.startswith("-") and a.endswith("c") for a in words[1:-1])
        if of == "eval":
            told, last = True, " ".join(words[1:])
        elif of == "sbatch" and self._document:
            told, last = True, self._document
        elif of in _HANDS_ON and not told:
            told, last = True, max(words[1:], key=len, default="")
            last = re.sub(r"^--(wrap|command)=", "", last)
            if of == "sbatch" and " " not in last:  # its script runs what a variable holds: NeMo-RL's ray.sub
                last = environment.get("COMMAND", "")
        if told and " " in last and self._depth < _MAX_NESTED:
            inner = self._inside(last)
            inner.variables |= {**environment, **of_engine(words, self.read)[1]}
            yield from inner.commands()

    def _assigned(self, words: list[str]) -> dict[str, str]:
        """Take the assignments that a command begins with off `words`; return what is set for it."""
        mine, at, declares = dict(self.variables), 0, False
        told = [*dropwhile(re.compile("-").match, words[1:])] if words[:1] in (["set"], ["setenv"]) else []
        if told[1:] and _NAME.fullmatch(told[0]) and "--" not in words:  # fish's and csh's
            told[1:2] = told[1:2] if told[1] != "=" else []
            self._arrays[told[0]], words[:] = told[1:], [f"{told[0]}={' '.join(told[1:])}"]
        while at < len(words):
            if words[at] in _DECLARE:
                declares = True
                names = (one.partition("=")[0].rstrip("+") for one in words[at:])
                self._locals |= {*names} if words[at] in _LOCAL else set()
            elif found := _ASSIGNED.fullmatch(words[at]):
                mine[found[1]] = mine.get(found[1], "") + found[3] if found[2] else found[3]
            elif found := _KEYED.fullmatch(words[at]):
                mine[f"{found[1]}[{found[2]}]"] = found[4]
            elif not (declares and words[at].startswith("-")):
                break
            at += 1
        del words[:at]
        if not words:
            for name, value in mine.items():
                self._set(name, value)
        return mine

    def _set(self, name: str, value: str) -> None:
        known = self.variables.get(name)
        if known is not None and re.fullmatch(r"\$\{?\d+\}?", known):
            known = None  # an argument that nobody gave: the branch says what it is then
        certain = all(block.live for block in self._blocks)
        if certain or (known is None and "$" not in value and name not in self._unclear):
            self.variables[name] = value[:_MAX_VALUE]
        elif known not in (None, value) and "$" not in value:
            del self.variables[name]
            self._unclear.add(name)
        if certain:
            self._unclear.discard(name)

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
        if found[2] == "<" and (held := self.read(word)):
            self._document = held[0][:MAX_SCRIPT]
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
        if self._documents > _MAX_DOCUMENTS:
            raise FileFormatError(f"{self.name} has more than {_MAX_DOCUMENTS} here-documents.")
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
        return [part[:_MAX_VALUE] for part in (parts if kept else parts[:-1])]

    def _with(self, parts: list[str], char: str) -> list[str]:
        """Return the words so far with what `char` begins put behind the last."""
        if char == "\\":
            more = [self._text[self._at : self._at + 1]]
            self._at += 1
        elif char == "'":
            more = [self._until("'")]
        elif char == '"':
            more = self._quoted()
            if len(more) > 1 and _ASSIGNED.fullmatch(parts[-1]):  # cmd="torchrun ${ARGS[@]}" is one text
                more = [" ".join(more)]
        elif char in "$`":
            joined = " ".join(self._dollar(char))
            whole = joined.startswith("$(") or _ASSIGNED.fullmatch(parts[-1]) is not None
            more = [joined] if whole else _SPLIT.findall(joined)
        else:
            plain = _PLAIN.match(self._text, self._at)
            more = [char + (plain[0] if plain else "")]
            self._at += len(more[0]) - 1
        if len(parts[-1]) > _MAX_VALUE:
            raise FileFormatError(f"{self.name}: a word of more than {_MAX_VALUE:,} characters is refused.")
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
                parts = self._dollar(char)
                if len(parts) > 1:
                    words += [current + parts[0], *parts[1:-1]]
                    current = parts[-1]
                else:
                    current += "".join(parts)
            else:
                current += char
            if len(current) > _MAX_VALUE:
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
        if sum(map(len, self._arrays[name])) > _MAX_ARRAY:
            raise FileFormatError(f"{self.name}: an array of more than {_MAX_ARRAY:,} characters is refused.")

    def _dollar(self, char: str) -> list[str]:
        """Return what a dollar sign or a backquote stands for, its text where nothing tells."""
        text = self._text
        if char == "`":
            inner = self._until("`")
            return [] if inner.lstrip()[:1] == "#" else [self._printed(inner)]
        following = text[self._at : self._at + 1]
        if (end := text.find("]", self._at)) > 0 and following == "[":  # as sums were once written
            inner, self._at = text[self._at + 1 : end], end + 1
            return [self._sum(inner)]
        if text.startswith("((", self._at):
            return [self._sum(self._balanced("((", "))"))]
        if following == "(":
            return [self._printed(self._balanced("(", ")"))]
        if following == "{":
            return self._parameter(self._balanced("{", "}"))
        name = _NAME.match(text, self._at)
        if name is None:
            return ["$"]
        self._at = name.end()
        return self._value(name[0])

    def _balanced(self, opening: str, closing: str) -> str:
        """Return what stands between brackets."""
        self._at += len(opening)
        start, depth = self._at, 1
        for found in _BRACKETS.finditer(self._text, start, start + _MAX_VALUE):
            depth += found[0] in opening
            depth -= found[0] in closing
            if depth + len(opening) <= 1:
                end = found.start()
                self._at = end + 1
                return self._text[start : end - len(closing) + 1]
        raise FileFormatError(f"{self.name} has a bracket that is never closed.")

    def _printed(self, text: str) -> str:
        """Return what $(...) prints where its text tells; else the text itself."""
        unread, said, folder = f"$({text})", list[str](), "."
        if self._depth >= _MAX_NESTED:
            return unread
        inner = self._inside(re.sub(r"^\s*<", "cat ", text))
        for words, _, document in inner.commands():
            if words[0] in ("cd", "pwd"):
                folder = words[-1] if words[0] == "cd" else folder
                found: str | None = folder if words[0] == "pwd" else ""
            else:
                found = output(words, document, inner.read)
            if found is None or not all(block.live for block in inner._blocks):
                return unread
            said += [] if inner._fed or not found else [found]
        return "\n".join(said).strip() if inner._documents or said or text.strip()[:1] in "[et" else unread

    def _parameter(self, inside: str) -> list[str]:
        """Return the value of ${...}: with a default where there is one, changed, counted, or a part of it."""
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
        if sign and sign[-1] in "-=+?":
            unset = held is None or (sign[0] == ":" and held in ([], [""]))
            if sign[-1] == "=" and unset:
                self.variables[name] = self._expanded(word)
            if sign[-1] in "-=" and unset:
                return [self._expanded(word)]
            if sign[-1] == "+":
                return [] if unset else [self._expanded(word)]
        if held is None or not sign or sign[-1] in "-=+?@":
            return unread if held is None else held
        if listed and sign == ":":
            part = between(self._expanded(word), len(held))
            first = part.start - (name in ("@", "*")) if part else 0
            return unread if part is None else held[max(0, first) :][: part.stop - part.start]
        by = [changed(one[:_MAX_ARRAY], sign, self._expanded(word)) for one in held]
        return unread if None in by else [one for one in by if one is not None]

    def _held(self, name: str, index: str) -> list[str] | None:
        """Return the value of a variable, of an array or of one of its elements; None where nothing set it."""
        array, given = self._arrays.get(name), self._arrays["@"]
        if index not in ("", "@", "*"):
            place = self._expanded(index)
            if (known := self.variables.get(f"{name}[{place}]")) is not None:
                return [known]
            at = int(told) if array and re.fullmatch(r"-?\d{1,5}", told := self._sum(place)) else MAX_WORDS
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
        if self._depth >= _MAX_NESTED or not ("$" in text or "`" in text):
            return text.strip("\"'")
        inner = self._inside("")
        inner.variables, inner._arrays = self.variables, self._arrays
        inner._text = text.strip('"').replace('"', '\\"') + '"'
        return " ".join(inner._quoted())
