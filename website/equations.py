"""Equations as MathML, which browsers draw themselves: no script, no font, no request.

A hook of MkDocs. The extension `pymdownx.arithmatex` finds the TeX between dollar signs and leaves
it in elements of the class "arithmatex"; here it becomes MathML.
"""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with every equation as MathML."""
    return with_mathml(text)


def with_mathml(text: str) -> str:
    """Return HTML with every equation in it as MathML."""
    return _MARKED.sub(_drawn, text)


def _drawn(found: re.Match[str]) -> str:
    """Return one equation, inside the line or on its own."""
    element, opening, tex = found.groups()
    display = "block" if opening == "[" else "inline"
    return f'<{element} class="equation">{convert(html.unescape(tex).strip(), display=display)}</{element}>'
