"""What expressions of Python and a shell come to, worked out from the text: names, arithmetic, classes.

Followed are names that every assignment gives the same value, arithmetic, f-strings, mappings, constants of
classes, defaults of functions, and what argparse, HfArgumentParser, TrlParser, click and fire take unasked
or from a command line. Nothing is run: the rest is `OPAQUE`.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import reduce
from itertools import count
from math import ceil, floor
from operator import ge, gt, le, lt
from typing import Any

from finegauge.formats import script_changes
from finegauge.formats.expansions import joined
from finegauge.formats.script_changes import OPAQUE, callee, last_name
from finegauge.formats.sheet import MAX_TEXT, held_by, laid_over, leaves, merged, scalar

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
_FILLED = (("tyro", "cli"), ("simple_parsing", "parse"), ("draccus", "parse"))  # by the command line
_PARSED = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
_BF16_ASKED: Mapping[str, Any] = {
    **dict.fromkeys(("is_bfloat16_supported", "is_bf16_supported"), True),
    "get_device_capability": [9, 0],
}
_DEVICES = ("cuda", "mps", "xpu", "npu")  # asked for by is_available: the first is there
_BUILT_IN = (int, float, str, bool, len, list, max, min, round, ceil, floor)
_PLAIN: Mapping[str, Callable[..., Any]] = {k.__name__: k for k in _BUILT_IN} | {
    **dict.fromkeys(("Path", "abspath", "realpath", "expanduser"), str),
    "join": lambda *parts: "/".join(parts),
    "dirname": lambda path: path.rpartition("/")[0],
}
_WORDS = ("get", "split", "strip", "lower", "upper", "as_posix", "resolve", "absolute")
_TEXTS = ("yaml", "json", "toml", "tomli", "tomllib")  # what they hold
_LOADS = ("load", "loads", "safe_load", "full_load")
_OPENED = ("open", "read_text", "read", "load")  # of a file beside the script; load is OmegaConf's
_HOLDERS = (
    *("dict", "SimpleNamespace", "OmegaConf", "EasyDict", "edict", "ParallelismConfig", "Namespace", "Box"),
    *("DotDict", "AttrDict", "Munch", "ConfigDict", "Config"),
)
_SAME = ("asdict", "vars", "to_container", "create", "merge", "structured")  # mappings as they are
_DEFAULTS = ("field", "Field", "Option", "Argument")
_DECLARED = ("add_argument", "option", "Option")
Files = Callable[[Any], str | None]  # returns the text of a file beside a script
_MAX_DEPTH = 40  # of names that stand for names
_MAX_STEPS = 20_000  # expressions that are worked out
_ORDER: Mapping[Any, Callable[[Any, Any], bool]] = {ast.Lt: lt, ast.LtE: le, ast.Gt: gt, ast.GtE: ge}


class Values:
    """The names of one text, and what they stand for."""

    def __init__(
        self,
        nodes: list[ast.AST],
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        files: Files,
        composed: Mapping[str, Any] = {},
    ) -> None:
        """Read the names of `nodes`, of a script that is started with `options` in `environment`.

        `composed` is what names hold that a decorator hands over, as Hydra's does.
        """
        self.missing = list[str]()  # files of keys that are not here
        self._environment, self._files = environment, files
        self.parsed: dict[str, Any] = {}  # what a parser of dataclasses takes, by its defaults and `options`
        self.parsed_classes: set[str] = set()
        self.declared = {"argv"}  # options of argparse, click and tyro; words that are none
        self.asks_for_bf16 = False
        named = (node.name for node in nodes if isinstance(node, ast.ClassDef))
        self.classes: dict[str, dict[str, Any]] = {name: {} for name in named}  # their constants
        self._options = {name: scalar(value) for name, value in options.items()}
        self._assigned: dict[str, list[Any]] = {"__name__": ["__main__"], "__file__": ["./script.py"]}
        self._namespace: dict[str, Any] = {}  # of argparse and click
        self._inside: set[str] = set()  # names that not the text's own lines alone assign
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        self._functions = {one.name: one for one in functions}
        self._bodies = [(one.body[0].lineno, one.end_lineno or 0) for one in functions]
        self._around: dict[int, list[tuple[int, int]]] = {}  # of lines, those that they stand in
        self._depth, self._steps = 0, count()
        self._resolved: dict[str, Any] = {}  # names that were asked for before
        self._changes = dict[str, list[script_changes.Change]]()
        self._handed = script_changes.Handed()
        for node in nodes:
            self._define(node)
        self._handed = script_changes.handed(nodes, self.classes, self.assigned)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._read_class(node)
        self._take_options(nodes)
        self._assigned |= {name: [held] for name, held in composed.items()}
        self._read_parsers(nodes)
        for node in nodes:
            if isinstance(node, ast.Call) and callee(node.func)[1] == "set_defaults":
                self._lay_under(node)
        self._changes = script_changes.changes_of(nodes, lambda test: self.of(test) is True)
        self._resolved = {}

    def _take_options(self, nodes: list[ast.AST]) -> None:
        """Note what functions take as options, of click or fire, and which are said no to."""
        if any(isinstance(node, ast.Call) and callee(node.func)[1] == "Fire" for node in nodes):
            self.declared |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        denied = {name[3:] for name in self._options if name.startswith("no_")} & {*self._namespace}
        self._options |= dict.fromkeys(denied, False)
        for function in self._functions.values():
            if "option" in [last_name(getattr(one, "func", None)) for one in function.decorator_list]:
                taken = {one.arg for one in function.args.args} & {*self._namespace} - {*self._assigned}
                self._assigned |= {name: [self._namespace[name]] for name in taken}

    def mappings(self) -> Iterator[dict[str, Any]]:
        """Yield the mappings that names stand for, as such or as a text of YAML."""
        for name, values in self._assigned.items():
            held = self._stands_for(name) if isinstance(values[0], ast.AST) else None
            if isinstance(values[0], ast.JoinedStr):
                yield from filter(None, [held_by(self.template(values[0]))])
            elif isinstance(held, dict) and held:
                found = {key: self.of(value) for key, value in held.items()}
                yield {key: value for key, value in found.items() if value is not OPAQUE}

    def assigned(self, name: str) -> Any:
        """Return the one expression that a name is assigned; None where there is none, or are several."""
        found = self._assigned.get(name, ())
        return found[0] if len(found) == 1 else None

    def option(self, name: str) -> Any:
        """Return what the command line says of an option; `OPAQUE` where it says nothing."""
        return self._options.get(name, OPAQUE)

    def named(self, call: ast.Call) -> dict[str, Any]:
        """Return what a call gives by names, and by mappings that it unpacks."""
        return self._merged([(one.arg, one.value) for one in call.keywords])

    def within(self, taken: ast.arguments, given: Mapping[str, Any]) -> "Values":
        """Return the values as a function has them that takes `taken`, where names are `given`."""
        seen, unasked = copy(self), [*taken.defaults, *taken.kw_defaults]
        names = [one.arg for one in (*taken.args, *taken.kwonlyargs)]
        pairs = zip(names[len(names) - len(unasked) :], unasked, strict=True)
        usual = {name: self.of(value) for name, value in pairs if value is not None}
        seen._options, seen._resolved = {**self._options, **usual, **given}, {}
        return seen

    def _merged(self, pairs: Iterable[tuple[str | None, ast.expr]]) -> dict[str, Any]:
        """Return names and values; those of a mapping where one is unpacked, whose name is None."""
        found = dict[str, Any]()
        for name, node in pairs:
            value = self.of(node)
            unpacked = value if isinstance(value, dict) else {}
            found |= {name: value} if name else {key: self.of(one) for key, one in unpacked.items()}
        return found

    def is_handed(self, name: ast.Name) -> bool:
        """Return whether a name is an argument of a function that the text calls once, and so is known."""
        return any((body, name.id) in self._handed for body in self._bodies_of(name.lineno))

    def of(self, node: Any) -> Any:
        """Return what an expression comes to, `OPAQUE` where only running it would tell."""
        if not isinstance(node, ast.AST):
            return node
        self._depth += 1
        try:
            kind = _KINDS.get(type(node)) if next(self._steps) < _MAX_STEPS else None
            return OPAQUE if kind is None or self._depth > _MAX_DEPTH else kind(self, node)
        finally:
            self._depth -= 1

    def _read_parsers(self, nodes: list[ast.AST]) -> None:
        """Note what parsers of the command line return, and functions that hand it on."""
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        returned = [
            (node.name, one) for node in functions for one in ast.walk(node) if isinstance(one, ast.Return)
        ]
        parsers = {name for name, one in returned if last_name(getattr(one.value, "func", None)) in _PARSED}
        for node in nodes:
            value = node.value if isinstance(node, ast.Assign) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Starred):
                value = node.args[0].value  # main(*parser.parse_args_and_config())
                taker = [one for one in functions if one.name == last_name(node.func)][:1]
                names: list[ast.expr] = [ast.Name(a.arg, ast.Load()) for one in taker for a in one.args.args]
                target = ast.Tuple(names, ast.Load()) if names else None
            if isinstance(value, ast.Subscript) and target is not None:  # parser.parse_args_...()[0]
                at = value.slice.value if isinstance(value.slice, ast.Constant) else 0
                count = at if isinstance(at, int) and at in (1, 2, 3) else 0
                before: list[ast.expr] = [ast.Name("", ast.Load()) for _ in range(count)]
                value, target = value.value, ast.Tuple([*before, target], ast.Load())
            if isinstance(value, ast.Call) and target is not None:
                function = value.func
                if isinstance(function, ast.Attribute) and function.attr in _PARSED:
                    self._parse(target, function.value)
                elif isinstance(function, ast.Name) and function.id in parsers:
                    self._parse(target, function)

    def _lay_under(self, call: ast.Call) -> None:
        """Note what a file lays under what a parser returned: parser.set_defaults(**of_file)."""
        laid = self.of(call.args[0]) if call.args else self.named(call)
        for values in self._assigned.values() if isinstance(laid, dict) else ():
            if isinstance(values[0], dict):
                values[0].update(laid | self._options)

    def _define(self, node: ast.AST) -> None:
        """Note what a statement calls by a name."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, inside=node.col_offset > 0)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._bind(node.target, node.target)  # itself: never resolved
        elif isinstance(node, ast.arguments):
            given = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
            for argument, default in (
                *(zip(given, node.defaults, strict=True) if node.defaults else ()),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ):
                if default is not None:
                    self._assigned.setdefault(argument.arg, []).append(default)
        elif isinstance(node, ast.withitem):
            self._bind(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.Call) and callee(node.func)[1] in _DECLARED:
            self._declare(node)

    def _bind(self, target: ast.expr | None, value: ast.expr, *, inside: bool = True) -> None:
        if isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(value)
            self._inside |= {target.id} if inside else set()
        elif isinstance(target, ast.Subscript) and last_name(target.value) == "environ":
            if (told := self.of(value)) is not OPAQUE:
                self._environment = {str(self.of(target.slice)): str(told), **self._environment}
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its, inside=inside)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call | ast.IfExp):
            for at, one in enumerate(target.elts):
                part = ast.Subscript(value, ast.Constant(at), ast.Load(), lineno=value.lineno)
                self._bind(one, part, inside=inside)

    def _declare(self, call: ast.Call) -> None:
        """Note an option that the script takes, and its default."""
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        words = {one.arg: one.value for one in call.keywords}
        named = [one for one in flags if one.isidentifier()] or [one for one in flags if one[:2] == "--"]
        name = (named or flags or [""])[0]
        dest, action = (self.of(words.get(key, ast.Constant(""))) for key in ("dest", "action"))
        name = str(dest or name.lstrip("-").partition("/")[0].replace("-", "_"))
        given = [one.lstrip("-").replace("-", "_") for one in flags]  # -r 16 is --rank 16
        self.declared |= {name, f"no_{name}", *given}
        stated = [self._options[one] for one in given if one in self._options]
        self._options |= {name: stated[-1]} if stated else {}
        if str(action).startswith("store_"):
            self._options |= {name: action == "store_true"} if True in stated else {}
            self._namespace.setdefault(name, action == "store_false")
        elif "default" in words:
            self._namespace.setdefault(name, words["default"])

    def _read_class(self, node: ast.ClassDef) -> None:
        """Note the constants of a class, those that it gives itself or has of another included."""
        fields = self.classes[node.name]
        named = {callee(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
        if {("__dict__", "update"), ("", "setattr")} & named:  # it holds whatever it is handed
            fields["__dict__"] = OPAQUE
        for part in ast.walk(node):
            if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                target = part.targets[0] if isinstance(part, ast.Assign) else part.target
                pairs = [(target, part.value)]
                if isinstance(target, ast.Tuple) and isinstance(part.value, ast.Tuple):
                    pairs = list(zip(target.elts, part.value.elts, strict=False))
                for one, value in pairs:
                    of_self = isinstance(one, ast.Attribute) and last_name(one.value) == "self"
                    if of_self or isinstance(one, ast.Name):
                        fields.setdefault(last_name(one), value)
            elif isinstance(part, ast.FunctionDef) and "property" in map(last_name, part.decorator_list):
                last = part.body[-1]
                if isinstance(last, ast.Return) and last.value:
                    fields[part.name] = ast.Lambda(part.args, last.value)
        for base in [one for one in map(last_name, node.bases) if one in self.classes and one != node.name]:
            fields |= self.classes[base] | fields

    def _changed(self, name: str, held: Any, line: int = 0) -> Any:
        """Return what a name holds with what the text sets within it, up to a line of the same function."""
        if not isinstance(held, dict) or name not in self._changes:
            return held
        body = self._body(line)
        before = [one for one in self._changes[name]
                  if not line or one.value.lineno < line or self._body(one.value.lineno) != body]  # fmt: skip
        seen = copy(self)
        seen._changes = {one: given for one, given in self._changes.items() if one != name}
        seen._resolved = {}
        return script_changes.changed(held, before, seen.of)

    def _parse(self, target: ast.expr, parser: ast.expr) -> None:
        """Note the names that hold what a parser returned."""
        found = self._assigned.get(parser.id, []) if isinstance(parser, ast.Name) else [parser]
        made = next(
            (one for one in found if isinstance(one, ast.Call) and callee(one.func)[1] in PARSERS), None
        )
        classes: list[str] = []
        if made is not None:
            given = [*made.args, *(one.value for one in made.keywords if one.arg == "dataclass_types")]
            listed = given[0] if given else None
            if isinstance(listed, ast.Name) and len(self._assigned.get(listed.id, ())) == 1:
                listed = self._assigned[listed.id][0]
            parts = listed.elts if isinstance(listed, ast.Tuple | ast.List) else [listed]
            classes = [last_name(part) for part in parts]
            self.parsed_classes |= {*classes}
            for one in classes:
                for field, default in self.classes.get(one, {}).items():
                    value = self._options.get(field, self.of(default))
                    if value is not OPAQUE and value is not None:
                        self.parsed.setdefault(field, value)
            self.parsed |= self._options
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for at, one_target in enumerate(targets):
            if isinstance(one_target, ast.Name):
                held = self.classes.get(classes[at], {}) if at < len(classes) else self._namespace
                self._assigned[one_target.id] = [{**held, **self._options}]

    def _name(self, node: ast.Name) -> Any:
        """Return what a name stands for, with what the text sets within it."""
        return self._changed(node.id, self._handed_on(node), getattr(node, "lineno", 0))

    def _handed_on(self, node: ast.Name) -> Any:
        """Return what a name stands for: of a function that is called once, what that call hands it."""
        for body in self._bodies_of(getattr(node, "lineno", 0)):
            if (value := self._handed.get((body, node.id))) is not None:
                key = f"{node.id} of {body}"
                if key not in self._resolved:
                    self._resolved[key] = OPAQUE  # of a name that stands for itself
                    on = value if isinstance(value, ast.Name) and value.id == node.id else None
                    self._resolved[key] = self._handed_on(on) if on else self.of(value)
                if (found := self._resolved[key]) is not OPAQUE:
                    return found
        return self._named(node)

    def _named(self, node: ast.Name) -> Any:
        """Return what a name stands for: of a function its own, else as all or earlier lines assign it."""
        name, line = node.id, getattr(node, "lineno", 0)
        given, body = self._assigned.get(name, ()), self._body(line)
        own = [v for v in given if self._body(getattr(v, "lineno", 0)) == body] if len(given) < 9 else []
        alone = len(own) == 1 < len(given) and name not in self._options
        key = f"{name} {body}" if alone else name
        if key not in self._resolved:
            self._resolved[key] = OPAQUE  # of a name that stands for itself
            self._resolved[key] = self.of(own[0]) if alone else self._stands_for(name)
        found = self._resolved[key]
        if found is not OPAQUE or alone or name in self._inside or len(given) < 2:
            return found
        if body:  # of a function that is called once: as it stands there
            call = self._handed.get((body, ""))
            return self.of(ast.Name(name, ast.Load(), lineno=call.lineno)) if call else found
        before = [v for v in own if getattr(v, "lineno", line) < line]
        return self.of(before[-1]) if before else found

    def _bodies_of(self, line: int) -> list[tuple[int, int]]:
        """Return the functions that a line stands in, the innermost first."""
        if line not in self._around:
            self._around[line] = sorted(one for one in self._bodies if one[0] <= line <= one[1])[::-1]
        return self._around[line]

    def _body(self, line: int) -> tuple[int, ...]:
        return next(iter(self._bodies_of(line)), ())

    def _stands_for(self, name: str) -> Any:
        values = self._assigned.get(name)
        first = values[0] if values else None
        made = isinstance(first, ast.Call) and callee(first.func)[1] not in _DEFAULTS
        if name in self._options and not made and not isinstance(first, dict):
            computed = self.of(first) if isinstance(first, ast.Subscript | ast.BinOp) else OPAQUE
            return self._options[name] if computed is OPAQUE else computed
        if not values:
            return dict(self.classes[name]) if name in self.classes else OPAQUE
        if len(values) > 8 or any(isinstance(one, ast.Name) and one.id == name for one in values):
            return OPAQUE
        found = [self.of(one) for one in values]
        return found[0] if all(one == found[0] for one in found[1:]) else OPAQUE

    def _attribute(self, node: ast.Attribute) -> Any:
        """Return torch.bfloat16 as "bfloat16", and a constant of an object or a class."""
        if last_name(node.value) in ("torch", "ShardingStrategy", "AttnBackend"):
            return node.attr
        if last_name(node.value) == "hparams":  # Lightning's: what the class was made with
            told = [value for (_, name), value in self._handed.items() if name == node.attr]
            return self.of(told[0] if len(told) == 1 else ast.Name(node.attr, ast.Load()))
        held = self.of(node.value)
        if node.attr == "argv" and last_name(node.value) == "sys":
            return ["", *self._options.get("argv", ())]
        if node.attr == "parent" and isinstance(held, str):
            return held.rpartition("/")[0]
        if held is OPAQUE and last_name(node.value) == "self":
            owners = [fields for fields in self.classes.values() if node.attr in fields]
            held = owners[0] if len(owners) == 1 else OPAQUE
        unset = isinstance(node.value, ast.Name) and node.value.id not in self._assigned
        if held is OPAQUE and unset and self._namespace:
            parsed = {**self._namespace, **self._options}
            held = self._changed(last_name(node.value), parsed, getattr(node, "lineno", 0))
        found = held.get(node.attr, OPAQUE) if isinstance(held, dict) else OPAQUE
        if isinstance(found, ast.Lambda):  # a property
            return self.within(found.args, {"self": held}).of(found.body)
        return self.of(found)

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        items = [self.of(item) for item in node.elts]
        return OPAQUE if any(item is OPAQUE for item in items) or leaves(items) > MAX_TEXT else items

    def _dict(self, node: ast.Dict) -> Any:
        keyed = [(key and self.of(key), value) for key, value in zip(node.keys, node.values, strict=True)]
        plain = [(key, value) for key, value in keyed if key is None or isinstance(key, str | int)]
        found = self._merged([(key if key is None else str(key), value) for key, value in plain])
        return OPAQUE if leaves(found) > MAX_TEXT else found

    def _subscript(self, node: ast.Subscript) -> Any:
        held, key = self.of(node.value), self.of(node.slice)
        if held is OPAQUE and last_name(node.value) == "environ":
            return self._environment.get(str(key), OPAQUE)
        if isinstance(held, list) and isinstance(key, int):
            return held[key] if -len(held) <= key < len(held) else OPAQUE
        found = held.get(key, OPAQUE) if isinstance(held, dict) and isinstance(key, str) else OPAQUE
        return self.of(found)

    def _binary(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.op, ast.Div) and isinstance(left, str) and isinstance(right, str):
            return f"{left}/{right}"  # of paths
        found = joined(node.op, left, right)
        return OPAQUE if found is None else found

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return OPAQUE if value is OPAQUE else not value
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else OPAQUE

    def _boolean(self, node: ast.BoolOp) -> Any:
        values = [self.of(one) for one in node.values]
        return next((v for v in values if v is OPAQUE or bool(v) is isinstance(node.op, ast.Or)), values[-1])

    def _condition(self, node: ast.IfExp) -> Any:
        test = self.of(node.test)
        return OPAQUE if test is OPAQUE else self.of(node.body if test else node.orelse)

    def _comparison(self, node: ast.Compare) -> Any:
        kind = type(node.ops[0]) if len(node.ops) == 1 else None
        left, right = self.of(node.left), self.of(node.comparators[0])
        if left is OPAQUE or right is OPAQUE:
            return OPAQUE
        if kind in (ast.Is, ast.IsNot, ast.Eq, ast.NotEq):
            return (left == right) is (kind in (ast.Is, ast.Eq))
        if kind in (ast.In, ast.NotIn) and isinstance(right, list | dict):
            return (left in list(right)) is (kind is ast.In)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        return _ORDER[kind](left, right) if kind in _ORDER and numbers else OPAQUE

    def template(self, node: ast.JoinedStr) -> str:
        """Return a text with variables of the shell for what running the script alone would tell."""
        told = [(part, self.of(part)) for part in (getattr(one, "value", one) for one in node.values)]
        return "".join(f"${last_name(part) or 'computed'}" if v is OPAQUE else str(v) for part, v in told)

    def _text(self, node: ast.JoinedStr) -> Any:
        parts = [self.of(getattr(part, "value", part)) for part in node.values]
        return OPAQUE if any(part is OPAQUE for part in parts) else "".join(map(str, parts))[:MAX_TEXT]

    def _call(self, node: ast.Call) -> Any:
        """Return what a call of one of a few plain functions returns."""
        owner, name = callee(node.func)
        name = str(self._options.get("cls", name)) if (owner, name) == ("", "cls") else name
        if name in _BF16_ASKED or (name == "is_available" and owner in _DEVICES):
            self.asks_for_bf16 |= name in _BF16_ASKED
            return _BF16_ASKED.get(name, owner == "cuda")
        filled = (owner, name) in _FILLED and bool(node.args)
        if filled or name in _HOLDERS or name in self.classes:
            held = self.classes.get(last_name(node.args[0]) if filled else name, {})
            holds = name in _HOLDERS or "__dict__" in held
            first_ = self.of(node.args[0]) if node.args and holds else None
            own = self.named(node) | (first_ if isinstance(first_, dict) else {})
            if filled:  # --model.name of a class within
                self.declared |= {*held}
                return laid_over(self._within(held), self._options)
            return held | own
        held = self.of(
            (node.args or [node.func])[0] if name == "replace" else getattr(node.func, "value", None)
        )
        if name in ("replace", "_replace") and isinstance(held, dict):
            return held | self.named(node)
        first: list[Any] = []
        if name in _DEFAULTS:
            first = [one.value for one in node.keywords if one.arg == "default"] or [*node.args, None]
            for one in [one.value for one in node.keywords if one.arg == "default_factory"]:
                first = [one.body if isinstance(one, ast.Lambda) else ast.Call(one, [], [])]
        elif name in ("getenv", "get") and node.args and owner in ("environ", "os"):
            told = self._environment.get(str(self.of(node.args[0])))
            first = node.args[1:] if told is None else [told]
        if (found := self._of_file(node, owner, name)) is not None:
            return found
        if name in _WORDS and not first and isinstance(node.func, ast.Attribute):
            first = [self._of_words(node.func.value, name, node.args)]
        return self.of(first[0]) if first else self._plain(owner, name, [self.of(one) for one in node.args])

    def _within(self, value: Any) -> Any:
        """Return what an expression comes to, and those that a mapping holds."""
        held = value if isinstance(value, ast.Lambda) else self.of(value)
        return {key: self._within(one) for key, one in held.items()} if isinstance(held, dict) else held

    def _plain(self, owner: str, name: str, given: list[Any]) -> Any:
        """Return what a plain function of known values returns, and what lays mappings over one another."""
        if name == "from_cli":
            self.declared |= {*self._options}
            words = (word.partition("=") for word in self._options.get("argv", ()))
            return laid_over({}, self._options | {key: scalar(value) for key, sign, value in words if sign})
        if name == "parse_args":
            return {**self._namespace, **self._options}
        if name == "get_world_size" and (told := self._environment.get("WORLD_SIZE", "")).isdecimal():
            return int(told)
        known = bool(given) and OPAQUE not in given and len(str(given)) < MAX_TEXT
        if name in _SAME:
            laid = [self._within(one) for one in given]
            return reduce(merged, laid) if known and all(isinstance(one, dict) for one in laid) else OPAQUE
        try:
            return (
                _PLAIN[name](*given) if known and name in _PLAIN and owner in ("", "math", "path") else OPAQUE
            )
        except (ValueError, OverflowError, TypeError, AttributeError):
            return OPAQUE

    def _returned(self, function: ast.FunctionDef, call: ast.Call, owner: str) -> Any:
        """Return what a function of the text returns where its one return is its last line."""
        last = function.body[-1]
        while isinstance(last, ast.With):
            last = last.body[-1]
        returns = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
        names = [one.arg for one in function.args.args]
        if returns != [last] or call in ast.walk(function) or "self" in names:
            return OPAQUE
        given = {names[0]: owner} if names[:1] == ["cls"] else {}
        handed = dict(zip(names[len(given) :], map(self.of, call.args), strict=False))
        told = {name: value for name, value in (handed | self.named(call)).items() if name in names}
        seen = self.within(function.args, given | told)
        value = seen.of(returns[0].value)
        self.asks_for_bf16 |= seen.asks_for_bf16
        return value

    def _of_file(self, node: ast.Call, owner: str, name: str) -> Any:
        """Return what a call reads out of a text or a file, or a function of the text returns; else None."""
        held = node.args[0] if node.args else getattr(node.func, "value", None)
        if owner in _TEXTS and name in _LOADS:
            found = held_by(self.of(held))
            return OPAQUE if found is None else found
        if name in self._functions and (not owner or owner in self.classes):
            return self._returned(self._functions[name], node, owner)
        if name not in _OPENED:
            return None
        text = self.of(held) if name == "read" and not node.args else self._files(named := self.of(held))
        if text is None and isinstance(named, str) and named.endswith((".yaml", ".yml", ".json", ".toml")):
            self.missing.append(named)
        told = held_by(text) if name == "load" else text
        return OPAQUE if told is None else told

    def _of_words(self, held: ast.expr, name: str, given: list[ast.expr]) -> Any:
        """Return the words of a text, it without the spaces around it, or what a mapping has."""
        text, by = self.of(held), self.of(given[0]) if given else None
        if isinstance(text, dict) and isinstance(by, str):
            return self.of(text.get(by, (*given[1:], None)[0]))
        if name in _WORDS[3:] and isinstance(text, str):
            return {"lower": text.lower(), "upper": text.upper()}.get(name, text)
        if not isinstance(text, str) or not (by is None or (isinstance(by, str) and by)) or len(given) > 1:
            return OPAQUE
        return text.split(by) if name == "split" else text.strip(by)

    def _comprehension(self, node: ast.ListComp) -> Any:
        """Return [one.strip() for one in words], and [one for one in words]."""
        made, part = node.elt, node.generators[0]
        called = made.func if isinstance(made, ast.Call) and not made.args else None
        stripped = called.value if isinstance(called, ast.Attribute) and called.attr == "strip" else None
        one = stripped or made
        same = isinstance(one, ast.Name) and isinstance(part.target, ast.Name) and one.id == part.target.id
        words = self.of(part.iter) if same and len(node.generators) == 1 else OPAQUE
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            return OPAQUE
        return [w for w in (word.strip() if stripped else word for word in words) if w or not part.ifs]


_KINDS: Mapping[type, Callable[[Values, Any], Any]] = {
    ast.Constant: lambda _, node: node.value,
    ast.Name: Values._name,
    ast.Attribute: Values._attribute,
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), Values._list),
    ast.Dict: Values._dict,
    ast.Call: Values._call,
    ast.ListComp: Values._comprehension,
    ast.Subscript: Values._subscript,
    ast.BinOp: Values._binary,
    ast.UnaryOp: Values._unary,
    ast.BoolOp: Values._boolean,
    ast.IfExp: Values._condition,
    ast.Compare: Values._comparison,
    ast.JoinedStr: Values._text,
}
