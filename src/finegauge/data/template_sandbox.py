"""The sandbox of chat templates: jinja2's immutable one, with what transformers' templates may use.

Nothing here reaches files, modules or the interpreter; what a template gets is text, numbers, lists
and mappings.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def environment(opens: str, closes: str) -> ImmutableSandboxedEnvironment:
    """Return the environment of a template; `opens` and `closes` stand around {% generation %}."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(opens, closes), loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals.update(
        raise_exception=_refuse, strftime_now=_now, dict=_Mappings(), namespace=_PlainNamespace
    )
    return made


def _generation(opens: str, closes: str) -> type[Extension]:
    """Return the extension that puts marks around the block {% generation %}."""

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2's own way to name them

        def parse(self, parser: Parser) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            first, last = (
                nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (opens, closes)
            )
            return [first, nodes.Scope(body).set_lineno(line), last]

    return Generation


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    """Let a template say that it cannot write a conversation."""
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


class _Mappings:
    """`dict`, of which a template sees nothing but what it makes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a mapping of keys to one value."""
        made: Callable[..., dict[Any, Any]] = dict.fromkeys
        return made(*args)


class _PlainNamespace(Namespace):
    """`namespace`, which keeps no name that begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace keeps no name with an underscore first: {name!r}")
