"""What expressions of Python and a shell come to, worked out from the text: names, arithmetic, classes.

Followed are names that every assignment gives the same value, arithmetic, f-strings, mappings, constants of
classes, defaults of functions, and what argparse, HfArgumentParser, TrlParser, click and fire take unasked
or from a command line. Nothing is run: the rest is `OPAQUE`.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from operator import ge, gt, le, lt
from typing import Any

from finegauge.documents import parse_yaml
from finegauge.errors import FileFormatError
from finegauge.formats.expansions import joined
from finegauge.formats.sheet import MAX_TEXT, scalar

OPAQUE = object()
PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
_FILLED = (("tyro", "cli"), ("simple_parsing", "parse"), ("draccus", "parse"))  # by the command line
_PARSED = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
_BF16_ASKED: Mapping[str, Any] = {
    **dict.fromkeys(("is_bfloat16_supported", "is_bf16_supported"), True),
    "get_device_capability": [9, 0],
}
_DEVICES = ("cuda", "mps", "xpu", "npu")  # asked for by is_available: the first is there
_BUILT_IN = (int, float, str, bool, len, list)
_PLAIN: Mapping[str, Callable[[Any], Any]] = {k.__name__: k for k in _BUILT_IN} | {"Path": str}
_WORDS = ("get", "split", "strip", "as_posix")
_TEXTS = (*(("yaml", way) for way in ("safe_load", "full_load", "load")), ("json", "load"), ("json", "loads"))
_OPENED = ("open", "read_text", "read", "load")  # of a file beside the script; load is OmegaConf's
_HOLDERS = (
    *("dict", "SimpleNamespace", "OmegaConf", "EasyDict", "edict", "ParallelismConfig", "Namespace", "Box"),
    *("DotDict", "AttrDict", "Munch", "ConfigDict", "Config"),
)
_DEFAULTS = ("field", "Field", "Option", "Argument")
_DECLARED = ("add_argument", "option", "Option")
Files = Callable[[Any], str | None]  # returns the text of a file beside a script
_MAX_DEPTH = 40  # of names that stand for names
_ORDER: Mapping[Any, Callable[[Any, Any], bool]] = {ast.Lt: lt, ast.LtE: le, ast.Gt: gt, ast.GtE: ge}


def callee(function: ast.expr) -> tuple[str, str]:
    """Return (owner, name) of what is called: ("FastLanguageModel", "from_pretrained")."""
    if isinstance(function, ast.Attribute):
        return last_name(function.value), function.attr
    return "", last_name(function)


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a dotted name, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _leaves(value: Any, most: int = MAX_TEXT) -> int:
    """Return how many values a list or a mapping holds, those inside too, counted up to `most`."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    count = 1
    for one in inside:
        count += _leaves(one, most - count) if count <= most else 1
    return count


def _held(text: Any) -> Any:
    """Return the mapping that a text of YAML or JSON holds; `OPAQUE` of anything else."""
    try:
        found = parse_yaml(text, "a text") if isinstance(text, str) else OPAQUE
    except FileFormatError:
        return OPAQUE
    return found if isinstance(found, dict) else OPAQUE


def _returns_parsed(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Return) else None
    return isinstance(value, ast.Call) and callee(value.func)[1] in _PARSED


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
        self.declared: set[str] = set()  # options of argparse, click and tyro
        self.asks_for_bf16 = False
        self.classes = dict[str, dict[str, Any]]()  # constants of the text's own classes
        self.classes |= {node.name: {} for node in nodes if isinstance(node, ast.ClassDef)}
        self._options = {name: scalar(value) for name, value in options.items()}
        self._assigned: dict[str, list[Any]] = {}
        self._namespace: dict[str, Any] = {}  # of argparse and click
        self._functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
        self._inside: set[str] = set()  # names that not the text's own lines alone assign
        self._bodies = [
            (n.body[0].lineno, n.end_lineno or 0) for n in nodes if isinstance(n, ast.FunctionDef)
        ]
        self._depth = 0
        self._resolved: dict[str, Any] = {}  # names that were asked for before
        for node in nodes:
            self._define(node)
        self._handed = self._hand_over(nodes)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._read_class(node)
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                self._amend(node.targets[0], node.value)
        if any(isinstance(node, ast.Call) and callee(node.func)[1] == "Fire" for node in nodes):
            self.declared |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        for name in [name for name in self._options if name.startswith("no_")]:
            if name[3:] in self._namespace:
                self._options[name[3:]] = False
        self._assigned |= {name: [held] for name, held in composed.items()}
        self._read_parsers(nodes)

    def mappings(self) -> Iterator[dict[str, Any]]:
        """Yield the mappings that names stand for, as such or as a text of YAML."""
        for name, values in self._assigned.items():
            held = self._stands_for(name) if isinstance(values[0], ast.AST) else None
            if isinstance(values[0], ast.JoinedStr):
                held = _held(self.template(values[0]))
                yield from [held] if isinstance(held, dict) else []
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

    def drop_dead_branches(self, nodes: list[ast.AST]) -> bool:
        """Empty the branches whose conditions the text decides the other way; return whether there were any.

        What a function takes unasked decides nothing: its callers may say otherwise.
        """
        defaults = {
            one.arg
            for node in nodes
            if isinstance(node, ast.arguments)
            for one in [*node.posonlyargs, *node.args, *node.kwonlyargs]
        } - self._handed
        dropped = False
        for node in nodes:
            if isinstance(node, ast.If) and not any(
                isinstance(part, ast.Name) and part.id in defaults and self.of(part) is not OPAQUE
                for part in ast.walk(node.test)
            ):
                test = self.of(node.test)
                if test is not OPAQUE:
                    dead = node.orelse if test else node.body
                    dropped |= bool(dead)
                    dead[:] = [] if test else [ast.Pass()]
        return dropped

    def of(self, node: Any) -> Any:
        """Return what an expression comes to, `OPAQUE` where only running it would tell."""
        if not isinstance(node, ast.AST):
            return node
        self._depth += 1
        try:
            kind = _KINDS.get(type(node))
            return OPAQUE if kind is None or self._depth > _MAX_DEPTH else kind(self, node)
        finally:
            self._depth -= 1

    def _read_parsers(self, nodes: list[ast.AST]) -> None:
        """Note what parsers of the command line return, and functions that hand it on."""
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        parsers = {node.name for node in functions if any(map(_returns_parsed, ast.walk(node)))}
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
        for node in nodes:
            if isinstance(node, ast.Call) and callee(node.func)[1] in ("set_defaults", "update"):
                self._amend_parsed(node)

    def _amend_parsed(self, call: ast.Call) -> None:
        """Note what a file lays over, or under, what a parser returned: vars(args).update(of_file)."""
        owner = getattr(call.func, "value", None)
        of = owner.args[0] if isinstance(owner, ast.Call) and owner.args else getattr(owner, "value", None)
        laid = self.of(call.args[0]) if call.args else self.named(call)
        parsed = [values[0] for values in self._assigned.values() if isinstance(values[0], dict)]
        if under := callee(call.func)[1] == "set_defaults":
            laid = laid | self._options if isinstance(laid, dict) else laid
        for held in parsed if under else self._assigned.get(last_name(of), ())[:1]:
            if isinstance(held, dict) and isinstance(laid, dict):
                held.update(laid)
                self._resolved = {}

    def _hand_over(self, nodes: list[ast.AST]) -> set[str]:
        """Give the arguments of functions that the text calls once what that call hands them.

        Return their names: of those that no other function has, and that nothing else assigns.
        """
        made = [(one, node.name) for node in nodes if isinstance(node, ast.ClassDef) for one in node.body]
        classes = {id(one): name for one, name in made if getattr(one, "name", "") == "__init__"}
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        names_of = [classes.get(id(one), one.name) for one in functions]  # as they are called
        called: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.setdefault(node.func.id, []).append(node)
                if ray := [one.value for one in node.keywords if one.arg == "train_loop_config"]:
                    loop = [one.value for one in node.keywords if one.arg == "train_loop_per_worker"]
                    started = ast.Call((loop or node.args or [node])[0], ray, [])
                    called.setdefault(last_name(started.func), []).append(started)
        takes = [[*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs] for one in functions]
        holders = Counter(argument.arg for taken in takes for argument in taken)
        handed = set[str]()
        for function, called_as, taken in zip(functions, names_of, takes, strict=True):
            calls = called.get(called_as, ())
            names = [argument.arg for argument in taken][id(function) in classes :]
            if len(calls) != 1 or names_of.count(called_as) != 1 or "self" in names:
                continue
            told = dict(zip(names, calls[0].args, strict=False))
            told |= {one.arg: one.value for one in calls[0].keywords if one.arg in names}
            defaults = {*map(id, function.args.defaults), *map(id, function.args.kw_defaults)}
            for name, value in told.items():
                alone = all(id(one) in defaults for one in self._assigned.get(name, ()))
                computed = isinstance(value, ast.Call) and callee(value.func)[1] not in self.classes
                computed &= not isinstance(value, ast.Call) or callee(value.func) not in _FILLED
                same = computed or (isinstance(value, ast.Name) and value.id == name)
                if holders[name] == 1 and alone and not same:
                    self._assigned[name] = [value]
                    self._inside.add(name)
                    handed.add(name)
        return handed

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
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its, inside=inside)

    def _declare(self, call: ast.Call) -> None:
        """Note an option that the script takes, and its default."""
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        words = {one.arg: one.value for one in call.keywords}
        name = next((one for one in flags if one.startswith("--")), flags[0] if flags else "")
        dest, action = (self.of(words.get(key, ast.Constant(""))) for key in ("dest", "action"))
        name = str(dest or name.lstrip("-").partition("/")[0].replace("-", "_"))
        given = [one.lstrip("-").replace("-", "_") for one in flags]  # -r 16 is --rank 16
        self.declared |= {name, f"no_{name}", *given}
        stated = [self._options[one] for one in given if one in self._options]
        self._options |= {name: stated[-1]} if stated else {}
        if str(action).startswith("store_"):
            self._namespace.setdefault(name, action == "store_false")
        elif "default" in words:
            self._namespace.setdefault(name, words["default"])

    def _read_class(self, node: ast.ClassDef) -> None:
        """Note the constants of a class, those that it gives itself included."""
        fields = self.classes[node.name]
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

    def _amend(self, target: ast.Attribute, value: ast.expr) -> None:
        """Note what is set on an object of one of the text's own classes: args.model_name = "..."."""
        made = self.assigned(last_name(target.value))
        name = callee(made.func)[1] if isinstance(made, ast.Call) else ""
        if name in self.classes and isinstance(value, ast.Constant):
            self.classes[name][target.attr] = value

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
        if found is not OPAQUE or alone or body or name in self._inside or len(given) < 2:
            return found  # of a function the callers stand anywhere
        before = [v for v in own if getattr(v, "lineno", line) < line]
        return self.of(before[-1]) if before else found

    def _body(self, line: int) -> tuple[int, ...]:
        return max((body for body in self._bodies if body[0] <= line <= body[1]), default=())

    def _stands_for(self, name: str) -> Any:
        values = self._assigned.get(name)
        first = values[0] if values else None
        made = isinstance(first, ast.Call) and callee(first.func)[1] not in _DEFAULTS
        if name in self._options and not made and not isinstance(first, dict):
            return self._options[name]
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
            return self.of(ast.Name(node.attr, ast.Load()))
        held = self.of(node.value)
        if held is OPAQUE and last_name(node.value) == "self":
            owners = [fields for fields in self.classes.values() if node.attr in fields]
            held = owners[0] if len(owners) == 1 else OPAQUE
        of_function = isinstance(node.value, ast.Name) and node.value.id not in self._assigned
        parses = isinstance(node.value, ast.Call) and callee(node.value.func)[1] == "parse_args"
        if held is OPAQUE and (parses or (of_function and self._namespace)):
            held = {**self._namespace, **self._options}
        return self.of(held.get(node.attr, OPAQUE)) if isinstance(held, dict) else OPAQUE

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        items = [self.of(item) for item in node.elts]
        return OPAQUE if any(item is OPAQUE for item in items) or _leaves(items) > MAX_TEXT else items

    def _dict(self, node: ast.Dict) -> Any:
        keyed = [(key and self.of(key), value) for key, value in zip(node.keys, node.values, strict=True)]
        plain = [(key, value) for key, value in keyed if key is None or isinstance(key, str | int)]
        found = self._merged([(key if key is None else str(key), value) for key, value in plain])
        return OPAQUE if _leaves(found) > MAX_TEXT else found

    def _subscript(self, node: ast.Subscript) -> Any:
        held, key = self.of(node.value), self.of(node.slice)
        if held is OPAQUE and last_name(node.value) == "environ":
            return self._environment.get(str(key), OPAQUE)
        if isinstance(held, list) and isinstance(key, int):
            return held[key] if -len(held) <= key < len(held) else OPAQUE
        found = held.get(key, OPAQUE) if isinstance(held, dict) and isinstance(key, str) else OPAQUE
        return self.of(found)

    def _binary(self, node: ast.BinOp) -> Any:
        found = joined(node.op, self.of(node.left), self.of(node.right))
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
        if test is OPAQUE and "argv" in ast.unparse(node.test):
            test = False  # nothing is handed on
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
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        told = [(part, self.of(part)) for part in parts]
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
            self.declared |= {*held} if filled else set()
            first_ = self.of(node.args[0]) if node.args and name in _HOLDERS else None
            own = self.named(node) | (first_ if isinstance(first_, dict) else {})
            return held | (self._options if filled else own)
        first: list[Any] = []
        if name in _DEFAULTS:
            first = [one.value for one in node.keywords if one.arg == "default"] or [*node.args, None]
        elif name in ("getenv", "get") and node.args and owner in ("environ", "os"):
            told = self._environment.get(str(self.of(node.args[0])))
            first = node.args[1:] if told is None else [told]
        if (found := self._of_file(node, owner, name)) is not None:
            return found
        if name in _WORDS and not first and isinstance(node.func, ast.Attribute):
            first = [self._of_words(node.func.value, name, node.args)]
        if first or owner or name not in _PLAIN or len(node.args) != 1:
            return self.of(first[0]) if first else OPAQUE
        value = self.of(node.args[0])
        try:
            kinds = list | dict if name in ("len", "list") else int | float | str
            plain = isinstance(value, kinds) and len(str(value)) < MAX_TEXT
            return _PLAIN[name](value) if plain else OPAQUE
        except (ValueError, OverflowError):
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
        if (owner, name) in _TEXTS:
            return _held(self.of(held))
        if name in self._functions and (not owner or owner in self.classes):
            return self._returned(self._functions[name], node, owner)
        if name not in _OPENED:
            return None
        text = self.of(held) if name == "read" and not node.args else self._files(named := self.of(held))
        if text is None and isinstance(named, str) and named.endswith((".yaml", ".yml", ".json", ".toml")):
            self.missing.append(named)
        return OPAQUE if text is None else _held(text) if name == "load" else text

    def _of_words(self, held: ast.expr, name: str, given: list[ast.expr]) -> Any:
        """Return the words of a text, it without the spaces around it, or what a mapping has."""
        text, by = self.of(held), self.of(given[0]) if given else None
        if isinstance(text, dict) and isinstance(by, str):
            return self.of(text.get(by, (*given[1:], None)[0]))
        if name == "as_posix":
            return text
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
