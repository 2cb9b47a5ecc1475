"""Makefiles and justfiles: the commands of each recipe, with what variables and parameters stand for.

A variable of make stands for its text where it is used, those of the command line before the file's own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import dedent

_MAX_RECIPES, _MAX_SET, _MAX_VALUE, _MAX_TEXT = 100, 100, 2000, 20_000
_ASSIGNED = re.compile(r"(?:(?:export|override)\s+)*([A-Za-z_][\w-]*)\s*(:{0,3}|\?|\+)=\s*(.*)")
_USED = re.compile(r"\$[({]([A-Za-z_]\w*)[)}]")
_OF_JUST = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}")
_ENVIRONMENT = re.compile(r"env(?:_var_or_default)?\(\s*[\"'](\w+)[\"']\s*,\s*[\"']([^\"']*)[\"']\s*\)")
_HEAD = re.compile(r"@?([\w.-]+)([^:=]*|[^:]*=[^:]*):(?!=)\s*(.*)")
_PARAMETER = re.compile(r"([+*$]?)([A-Za-z_][\w-]*)(?:\s*=\s*([\"']?)(.*?)\3)?(?=\s|$)")
_CONDITION = re.compile(r"(ifn?eq)\s*(?:\((.*?),(.*)\)|[\"'](.*?)[\"']\s+[\"'](.*?)[\"'])|(ifn?def)\s+(\w+)")


class _Recipe:
    def __init__(self, parameters: str) -> None:
        self.parameters = [(name, sign, value) for sign, name, _, value in _PARAMETER.findall(parameters)]
        self.needed, self.lines = list[str](), list[str]()
        self.own: dict[str, str] = {}  # variables of this target alone


class _Makefile:
    """The variables and recipes of one file."""

    def __init__(self, text: str, given: Mapping[str, str], *, just: bool) -> None:
        """Read the file under the variables that its command line gives."""
        self.just, self.given, self.variables = just, given, dict(given)
        self.recipes: dict[str, _Recipe] = {}
        self.files = [".env"] if just and re.search(r"(?m)^set dotenv-load\b(?!.*false)", text) else []
        last, taken = _Recipe(""), list[bool]()
        for line in re.sub(r"\\\r?\n[ \t]*", " ", text).splitlines():
            stated = line.strip()
            if not just and re.match(r"(ifn?(eq|def)|else|endif)\b", stated):
                self._branch(stated, taken)
            elif not all(taken):
                continue
            elif line[:1] in ("\t", " ") and stated:
                last.lines.append(line)
            elif found := _ASSIGNED.fullmatch(line.rstrip()):
                self._assign(*found.groups())
            elif not just and (included := re.match(r"[-s]?include\s+(\S+)", line)):
                self.files.append(included[1])
            elif found := _HEAD.fullmatch(line.rstrip()):
                last = self.recipes.setdefault(found[1], _Recipe(found[2]))
                if own := _ASSIGNED.fullmatch(found[3]):
                    last.own[own[1]] = own[3]
                else:
                    needed, _, first = found[3].partition("##")[0].partition(";")
                    last.needed += re.findall(r"[\w.-]+", needed)
                    last.lines += [first] if first and not just else []

    def _branch(self, stated: str, taken: list[bool]) -> None:
        """Follow the words that part a Makefile into branches."""
        found = _CONDITION.match(stated)
        if found and found[6]:
            taken.append(bool(self.variables.get(found[7])) is (found[6] == "ifdef"))
        elif found:
            sides = [self.plain(one or "").strip() for one in (found[2] or found[4], found[3] or found[5])]
            taken.append((sides[0] == sides[1]) is (found[1] == "ifeq"))
        elif taken:
            taken[-1:] = [] if stated.startswith("endif") else [not taken[-1]]

    def _assign(self, name: str, sign: str, value: str) -> None:
        value = value.partition(" #")[0].strip()
        value = _ENVIRONMENT.sub(r"${\1:-\2}", value) if self.just else value
        value = re.sub(r"^([\"'])([^\"']*)\1$", r"\2", value)[:_MAX_VALUE]
        if name in self.given or (sign == "?" and name in self.variables) or len(self.variables) > _MAX_SET:
            return
        before = self.variables.get(name, "") if sign == "+" else ""
        self.variables[name] = f"{before} {value}".strip()

    def plain(self, script: str, known: dict[str, str] | None = None) -> str:
        """Return a text with what its variables stand for; those that nothing sets as the shell's."""
        known = {} if known is None else known  # what each of them came to, once

        def value(found: re.Match[str]) -> str:
            name, as_shell = found[1], f"${{{found[1].replace('-', '_')}}}"
            if name not in known:
                known[name] = as_shell  # that stands for itself
                known[name] = self.plain(self.variables.get(name, as_shell), known)
            return known[name]

        if self.just:
            return _OF_JUST.sub(value, script)[:_MAX_TEXT]
        called = script.replace("$(MAKE)", "make").replace("$(shell ", "$(")
        return _USED.sub(value, called)[:_MAX_TEXT]

    def scripts(self, target: str, arguments: Sequence[str] = ()) -> Iterator[str]:
        """Yield what a recipe runs, behind those that it needs; of no target each recipe."""
        for name in self._order(target, set()) if target else list(self.recipes)[:_MAX_RECIPES]:
            recipe = self.recipes[name]
            held, self.variables = self.variables, {**self.variables, **recipe.own, **self.given}
            for at, (parameter, sign, value) in enumerate(recipe.parameters if self.just else ()):
                given = arguments[at : None if sign in ("*", "+") else at + 1] if name == target else ()
                self.variables[parameter] = " ".join(given) if given else value
            set_ = [
                f'{name.replace("-", "_")}="{self.plain(value)}"' for name, value in self.variables.items()
            ]
            lines = dedent("\n".join(recipe.lines)).splitlines()
            body = self.plain("\n".join([*set_, *(re.sub(r"^[@-]+", "", line) for line in lines)]))
            self.variables = held
            if lines:
                yield body if self.just else body.replace("$@", name).replace("$$", "$")

    def _order(self, target: str, seen: set[str]) -> list[str]:
        if target not in self.recipes or target in seen or len(seen) > _MAX_RECIPES:
            return []
        seen.add(target)
        return [*(name for one in self.recipes[target].needed for name in self._order(one, seen)), target]


def of_recipes(text: str, words: Sequence[str] = (), *, just: bool = False) -> tuple[list[str], list[str]]:
    """Return what `make TARGET NAME=value` or `just` runs, else each recipe, and files that are included."""
    given = {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
    makefile = _Makefile(text, given, just=just)
    places = [at for at, word in enumerate(words) if word in makefile.recipes]
    known = [words[at] for at in places[: 1 if just else None]]
    arguments = words[places[0] + 1 :] if known else []
    scripts = [one for target in known or [""] for one in makefile.scripts(target, arguments)]
    return scripts or [""], makefile.files
