"""click, imported without what an estimate never asks of it: `inspect`, `platform` and `gettext`.

While click is imported, stand-ins take their places. Each has the functions that click (and uuid, which
it imports) calls for a command; whatever else is asked of one comes from the module, imported then. No texts
of FineGauge are translated, so that click's stay as they are unless another program loads `gettext`.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["click"]


def cleandoc(text: str) -> str:
    """Return a help text without its indents, as inspect does; one line has none."""
    if "\n" in text or "\t" in text:
        from inspect import cleandoc

        return cleandoc(text)
    return text.strip()


def gettext(message: str) -> str:
    """Return click's text as it is, translated where the process translates."""
    real = _real_gettext()
    return str(real.gettext(message)) if real else message


def ngettext(one: str, several: str, number: int) -> str:
    """Return the text for a number of things, likewise."""
    real = _real_gettext()
    return str(real.ngettext(one, several, number)) if real else one if number == 1 else several


def _real_gettext() -> ModuleType | None:
    found = sys.modules.get("gettext")
    return found if hasattr(found, "textdomain") else None


def _stand_in(name: str, **functions: Callable[..., Any]) -> ModuleType | None:
    if name in sys.modules:
        return None

    def asked(attribute: str) -> Any:
        if attribute == "__path__":  # which "from ... import" looks for
            raise AttributeError(attribute)
        _step_aside(module)
        return getattr(import_module(name), attribute)

    module = ModuleType(name)
    vars(module).update(functions, __getattr__=asked)
    sys.modules[name] = module
    return module


def _step_aside(module: ModuleType | None) -> None:
    if module is not None and sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


_modules = [_stand_in("inspect", cleandoc=cleandoc), _stand_in("gettext", gettext=gettext, ngettext=ngettext)]
if hasattr(os, "uname"):
    _modules.append(_stand_in("platform", system=lambda: os.uname().sysname))
try:
    import click
finally:
    for _module in _modules:
        _step_aside(_module)
