"""The commands of a shell script, as text: variables, arrays and here-documents followed, nothing run.

What only a shell could work out (a command's output, a variable that the script does not set) stays in the
words as it is written, with its dollar sign. Loops turn as far as the text tells over what. A branch whose
test the text decides the other way is left out; a variable that two other branches set differently counts
as not set.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import dropwhile

from finegauge.errors import FileFormatError
from finegauge.formats import MAX_SCRIPT
from finegauge.formats.expansions import decided, output
from finegauge.formats.launchers import WORKING, of_engine, whole_of
from finegauge.formats.shell_words import (
    ASSIGNED,
    CLOSES,
    MAX_DOCUMENTS,
    MAX_NESTED,
    MAX_VALUE,
    NAME,
    PARTS,
    Words,
)
from finegauge.records import NamedTuple

_MAX_COMMANDS, _MAX_CALLS, _MAX_TURNS, _MAX_FUNCTIONS = 5_000, 200, 100, 200
_FUNCTION = re.compile(r"(?m)^(?:function[ \t]+)?([A-Za-z_]\w{0,63})[ \t]*\([ \t]*\)[ \t]*\n?\{([^\n]*)")
# The word of a command.
_FIRST = re.compile(
    r"(?:^|[;&|()`!]|\b(?:then|do|else|if|while|until)\b)[ \t]*([A-Za-z_]\w{0,63})"
    r"(?![ \t]*\()(?=[\s;&|)`]|$)",
    re.MULTILINE,
)
_KEYED = re.compile(r"([A-Za-z_]\w{0,63})\[([^\[\]=]{1,80})\](\+?)=(.*)", re.DOTALL)  # MODELS[small]=...
# A file whose lines are taken as the script's own: source FILE, export $(grep -v '^#' .env | xargs)
_SOURCED = re.compile(r"(?:source|\.) (\S+)|\$\((?:cat|grep|egrep|sed|xargs)\b.*?([\w./~-]*\.env)[ |'\")].*")
_DECLARE = {"export", "declare", "local", "readonly", "typeset", "env"}
_LOCAL = ("local", "declare", "typeset")  # in a function
# A here-document in the place of a file's name, --config_file <(cat <<EOF, as one that is written before
_AS_FILE = re.compile(
    r"(?ms)^([^\n]*?)<\(\s*cat\s+(<<-?\s*(['\"]?)(\w+)\3)[ \t]*\n(.*?\n[ \t]*\4)[ \t]*\n\s*\)"
)
_WRITTEN = r"cat > document_\4 \2\n\5\n\1document_\4"
_WRITES = ("sed", "envsubst", "cat", "tee", "echo", "printf", "jq", "yq", "cp")  # a file, where one is named
_SUCCEEDS = (
    "echo",
    "printf",
    "export",
    "local",
    "readonly",
    "declare",
)  # so that what stands behind || is not run
_HANDS_ON = frozenset(("tmux", "screen", "ssh", "sbatch", "bsub", "gcloud", "wsl"))  # a text is a command
_IGNORED = {"time", "exec", "nohup", "sudo", "command", "!"}


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


class _Block:
    """A condition, a loop or a group, and whether the branch that is read is taken (None: it may be)."""

    def __init__(
        self,
        closes: str,
        *,
        live: bool,
        word: str = "",
        begin: int = 0,
        again: "Callable[[_Block], bool] | None" = None,
    ) -> None:
        """Begin before the first branch; `word`: what a case compares; a loop goes to `begin` if `again`."""
        self.closes, self.word, self.begin, self.again = closes, word, begin, again
        self.sure = self.resumes = False  # whether a loop's test is decided, and its turn left for the next
        self.live: bool | None = live
        self.patterns: list[str] | None = [] if closes == "esac" else None  # while they are read
        self.tests: list[bool | None] = []
        self.joined: list[str] = []  # by which operators
        self.left: bool | None = live  # whether no branch before was taken

    def ask(self) -> None:
        """Come to the test of the next branch."""
        self.live, self.tests, self.joined = self.left, [], []

    def enter(self, decided: bool | None) -> None:
        """Enter a branch whose own test is `decided`."""
        self.live = _all_of((self.left, decided))
        self.left = _all_of((self.left, _not_of(decided)))

    def answer(self) -> bool | None:
        """Return what the tests since `ask` come to."""
        found = self.tests[0] if self.tests else None
        for between, one in zip(self.joined, self.tests[1:], strict=False):
            either = _not_of(_all_of((_not_of(found), _not_of(one))))
            found = either if between == "||" else _all_of((found, one)) if between == "&&" else None
        return found


def _all_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all are true."""
    return False if False in answers else None if None in answers else True


def _not_of(answer: bool | None) -> bool | None:
    """Return the other answer."""
    return None if answer is None else not answer


def _fits(word: str, pattern: str) -> bool | None:
    """Return whether a word is one of a pattern's."""
    return True if pattern == "*" else None if "$" in word + pattern else fnmatchcase(word, pattern)


class Shell(Words):
    """One script, read from the first command to the last."""

    def __init__(self, text: str, name: str, arguments: Sequence[str] = (), *, depth: int = 0) -> None:
        """Begin with `arguments` as the script's own ($1, $2, ..., $@)."""
        if len(text) > MAX_SCRIPT:
            raise FileFormatError(f"{name} is too long a script; at most {MAX_SCRIPT:,} characters are read.")
        super().__init__(name, arguments, depth)
        self.files: dict[str, str] = {}  # that the script writes by here-documents
        self._functions: dict[str, str] = {}
        self.calls = [0, 0]  # of all shells of a script, and turns of their loops
        self._include(text, arguments)
        self._blocks: list[_Block] = []
        self._unclear = set[str]()  # variables that branches set to one value and to another
        self._locals = set[str]()  # of a function
        self._before: tuple[bool | None, str] = None, ""  # what a test came to, and "&&" or "||" behind it
        self._begin, self._separator, self._fed, self._letters = 0, "", "", ""
        self._said: list[str] = []  # by the commands of a group
        self._submitted: list[Command] = []  # whose answer the script keeps: JOB=$(sbatch train.slurm)

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
        self._behind = {
            at + later: end + later
            for at, end in self._behind.items()
            for later in [len(joined) if at > self._at else 0]
        }

    def _inside(self, text: str, arguments: Sequence[str] = ()) -> "Shell":
        """Return a shell that reads another text with what is known here."""
        inner = Shell(text, self.name, arguments, depth=self._depth + 1)
        inner._functions |= {name: self._functions[name] for name in self._functions}
        inner.calls, inner.read, inner.files = self.calls, self.read, self.files
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
            if words[:1] == ["}"] and target:
                self._keep(target, "".join(self._said))
            words = self._followed(words, self._separator)
            submitted, self._submitted = self._submitted, []
            if skipped or not self._is_live():
                self._arrays = arrays
            if not self._is_live():
                continue
            yield from () if skipped else submitted
            environment = self._assigned(words)
            if words and self._separator[:1] == "|" and self._separator != "||":
                told = output(words, self._document, self.read)
                self._fed = f"$({words[0]})" if told is None else told[:MAX_VALUE]
            if not words or self._kept(words, target, environment.get("IFS", "").strip() or None):
                continue
            if words[0] in self._functions and self._depth < MAX_NESTED:
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
        if words[0] == "read" and self._document:
            self._take(words[1:], self._document.strip()[:MAX_VALUE], separator)
        elif words[:2] == ["printf", "-v"] and words[3:]:
            self._set(words[2], output(["printf", *words[3:]], "", self.read) or "$(printf)")
        elif words[0] in _WRITES:
            return self._written(words, target)
        elif told := _SOURCED.match(" ".join(words[:20])[:500]):
            self._documents += 1
            if (found := self.read(told[1] or told[2])) and self._documents <= MAX_DOCUMENTS:
                self._include(f"\n{found[0][:MAX_SCRIPT]}\n", whole=True)
        else:
            return self._counted(words)
        return True

    def _counted(self, words: list[str]) -> bool:
        """Return whether a command only moves on: a sum, the script's own arguments, the end of a loop."""
        if words[0] == "let":
            self._sum(" ".join(words[1:]))
        elif words[0] == "shift" or (words[0] == "set" and "--" in words):
            count = int(words[1]) if words[1:] and words[1].isdecimal() else 1
            held = self._arrays["@"] if words[0] == "shift" else words[words.index("--") :]
            self._arrays |= dict.fromkeys("@*", held[count:])
        elif words[0] == "return" and self._depth and all(block.live for block in self._blocks):
            self._at = len(self._text)
        elif words[0] in ("break", "continue") and all(block.live for block in self._blocks):
            for block in reversed(self._blocks):
                block.live = False
                if block.closes == "done":
                    block.again, block.resumes = None if words[0] == "break" else block.again, True
                    break
        else:
            return words[0] == "(("  # whose variables its test has set
        return True

    def _written(self, words: list[str], target: str) -> bool:
        """Return whether a command writes a file whose text is known, and keep that text."""
        names = [word for word in words[1:] if word[:1] != "-"]
        if names and (words[0] in ("tee", "cp") or (words[0] == "sed" and "-i" in words)):
            target = names[-1]
        if not target:
            self._said += [f"{output(words, self._document, self.read) or ''}\n"] if self._blocks else []
            return False
        held = self._document
        if (words[0] == "sed" and not held) or words[0] == "cp":
            found = self.read(words[-2] if words[0] == "cp" else words[-1])
            held = found[0][:MAX_SCRIPT] if found else ""
        if words[0] == "envsubst":
            held = re.sub(r"\$\{?(\w{1,64})\}?", lambda one: self.variables.get(one[1], one[0]), held)
        elif words[0] not in ("tee", "cp") and not (words[0] == "cat" and held):
            held = output(words, held, self.read) or ""
        self._keep(target, held + ("" if words[0] in ("cat", "tee", "cp") else "\n"))
        return True

    def _keep(self, target: str, text: str) -> None:
        """Keep what is written into a file, if it is known."""
        self._documents += 1
        if text.strip() and text[:2] != "$(" and self._documents <= MAX_DOCUMENTS:
            name = WORKING.sub("", target)
            self.files[name] = (self.files.get(name, "") if self._appends else "") + text

    def _called(self, words: list[str], environment: Mapping[str, str]) -> Iterator[Command]:
        """Yield the commands of a function that is called with arguments."""
        self.calls[0] += 1
        if self.calls[0] > _MAX_CALLS:
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
        while words and (words[0] in PARTS or words[0] in _IGNORED):
            turned |= words[0] == "!"
            self._part(words[0])
            words = words[1:]
        if words[:1] == ["case"] and words[2:3] == ["in"]:
            self._blocks.append(_Block("esac", live=self._is_live(), word=words[1]))
            words = words[3:]
        block = self._blocks[-1] if self._blocks else None
        if block is not None and block.patterns is not None:
            block.patterns += words
            if separator[:1] == ")" and block.patterns:
                block.enter(_not_of(_all_of([_not_of(_fits(block.word, one)) for one in block.patterns])))
                block.patterns = None
            return []
        operator_ = separator if separator in ("&&", "||") else ""
        if not words:  # behind a group
            self._before = self._before[0], operator_
            return []
        answer, skipped = self._before[0], self._is_skipped()
        if not skipped:
            answer = _not_of(self._decided(words)) if turned else self._decided(words)
            answer = True if ASSIGNED.fullmatch(words[0]) or words[0] in _SUCCEEDS else answer
        if block is not None:
            block.tests.append(None if skipped else answer)
            block.joined.append(separator)
        self._before = answer, operator_
        if words[0] in ("for", "select") and words[1:]:
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
        given, at = self._arrays["@"], whole_of(self.variables.setdefault("OPTIND", "1")) or 1
        word = given[at - 1] if at <= len(given) else ""
        letters = self._letters or (word[1:] if re.match("-[^-]", word) else "")
        letter, self._letters, argument = letters[:1] or "?", letters[1:], ""
        if f"{letter}:" in known:
            at += not self._letters
            argument, self._letters = self._letters or "".join(given[at - 1 : at]), ""
        at += bool(letters) and not self._letters
        self.variables |= {name: letter if letter in known else "?", "OPTIND": str(at), "OPTARG": argument}
        return bool(letters)

    def _loop(self, words: list[str]) -> None:
        """Begin a loop over words, or one that counts."""
        live, turns = self._is_live(), list[str]()
        if words[1] == "((":
            first, test, step = (*words[2].split(";"), "", "")[:3]
            if live:
                self._sum(first)
                live = self._decided(["((", test]) is not False

            def again(_: _Block) -> bool:
                self._sum(step)
                return self._decided(["((", test]) is True
        else:
            turns = words[3:] if "in" in words[2:3] else self._arrays["@"]
            left = iter(turns if words[0] == "for" else [])

            def again(_: _Block) -> bool:
                value = next(left, None)
                self.variables |= {words[1]: value} if value is not None else {}
                return value is not None

        self._blocks.append(block := _Block("done", live=live, begin=self._at, again=again))
        if live and turns:
            again(block)

    def _part(self, word: str) -> None:
        """Open, part or close a block."""
        block = self._blocks[-1] if self._blocks else None
        if word in CLOSES:
            turns = partial(self._turns, len(self._arrays["@"]), {**self.variables})
            live, again = (
                self._is_live() and not self._is_skipped(),
                turns if word in ("while", "until") else None,
            )
            self._blocks.append(_Block(CLOSES[word], live=live, word=word, begin=self._begin, again=again))
            self._said = [] if word == "{" else self._said
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
            answer = _not_of(block.answer()) if block.word == "until" else block.answer()
            block.sure = answer is True
            block.enter(answer is not False)
        elif word == "else":
            if block.live and block.left:  # no "then" was met
                raise FileFormatError(f"{self.name} has branches of fish; name the command itself, after --.")
            block.enter(True)
        elif word == ";;" and block.closes == "esac":
            block.live, block.patterns = False, []

    def _close(self, block: _Block) -> None:
        """Leave a block, of a loop for its next turn."""
        self._blocks.pop()
        self._before = block.live, ""
        goes_on = block.live or block.resumes
        if goes_on and block.again is not None and self.calls[1] < _MAX_TURNS and block.again(block):
            self.calls[1] += 1
            self._behind = {at: end for at, end in self._behind.items() if at < block.begin}
            self._at, block.tests, block.live, block.resumes = block.begin, [], True, False
            self._blocks += [] if isinstance(block.again, partial) else [block]

    def _turns(self, given: int, known: Mapping[str, str], block: _Block) -> bool:
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
        if told and " " in last and self._depth < MAX_NESTED:
            inner = self._inside(last)
            inner.variables |= {**environment, **of_engine(words, self.read)[1]}
            yield from inner.commands()

    def _assigned(self, words: list[str]) -> dict[str, str]:
        """Take the assignments that a command begins with off `words`; return what is set for it."""
        mine, at, declares = dict(self.variables), 0, False
        told = [*dropwhile(re.compile("-").match, words[1:])] if words[:1] in (["set"], ["setenv"]) else []
        if told[1:] and NAME.fullmatch(told[0]) and "--" not in words:  # fish's and csh's
            told[1:2] = told[1:2] if told[1] != "=" else []
            self._arrays[told[0]], words[:] = told[1:], [f"{told[0]}={' '.join(told[1:])}"]
        while at < len(words):
            if words[at] in _DECLARE:
                declares = True
                names = (one.partition("=")[0].rstrip("+") for one in words[at:])
                self._locals |= {*names} if words[at] in _LOCAL else set()
            elif found := ASSIGNED.fullmatch(words[at]):
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
            self.variables[name] = value[:MAX_VALUE]
        elif "$(" in value or (known not in (None, value) and "$" not in value):
            self.variables.pop(name, None)
            self._unclear.add(name)
        if certain:
            self._unclear.discard(name)

    def _printed(self, text: str) -> str:
        """Return what $(...) prints where its text tells; else the text itself."""
        unread, said, folder = f"$({text})", list[str](), "."
        if self._depth >= MAX_NESTED:
            return unread
        if re.match(r"\s*sbatch\s", text):
            self._submitted += self._inside(text).commands()
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
        return "\n".join(said).strip()
