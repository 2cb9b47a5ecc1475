"""A page for every command, from the very `--help` that users read.

A hook of MkDocs (`mkdocs.yml` names it): it adds `commands/NAME.md` for every command that
`finegauge --help` lists, with what click says of its arguments and options, and the pages of the
documentation that speak of it. Nothing of them is typed by hand, so nothing of them can be stale.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from finegauge.cli import COMMANDS, root

SECTION = "Commands"
OVERVIEW = "commands.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the commands, in the order of `--help`, and the decisions in the navigation."""
    _section(config, SECTION).extend(f"commands/{name}.md" for name in COMMANDS)
    decisions = sorted(Path(config.docs_dir, "decisions").glob("*.md"))
    _section(config, "Decisions").extend(f"decisions/{path.name}" for path in decisions)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every command."""
    said = {
        file.src_uri: file.content_string for file in files.documentation_pages() if file.src_uri != OVERVIEW
    }
    for name in COMMANDS:
        spoken = [uri for uri, text in said.items() if re.search(rf"\bfinegauge {name}\b", text)]
        uri = f"commands/{name}.md"
        files.append(File.generated(config, uri, content=page(name, spoken)))
    return files


def page(name: str, spoken_of_in: list[str]) -> str:
    """Return the Markdown of the command `name`.

    Args:
        name: As `finegauge --help` lists it.
        spoken_of_in: Pages of the documentation, by their path in docs.
    """
    context = click.Context(root, info_name="finegauge")
    command = root.get_command(context, name)
    if command is None:
        raise click.UsageError(f"finegauge lists '{name}', and no such command is to be had.")
    lines = [f"# finegauge {name}", "", COMMANDS[name][1], ""]
    for at, one in _with_subcommands(command, context, name):
        if at != name:
            lines += [f"## finegauge {at}", ""]
        lines += _described(one, context, at)
    lines += ["See [what commands have in common](../commands.md)" + _links(spoken_of_in) + ".", ""]
    return "\n".join(lines)


def _section(config: MkDocsConfig, title: str) -> list[Any]:
    """Return the pages that the navigation of `mkdocs.yml` has under `title`."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and isinstance(entry.get(title), list):
            found: list[Any] = entry[title]
            return found
    raise LookupError(f"mkdocs.yml has no section '{title}' in its navigation.")


def _with_subcommands(
    command: click.Command, parent: click.Context, name: str
) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and what it groups, each with the words that call it."""
    yield name, command
    if isinstance(command, click.Group):
        for word in command.list_commands(parent):
            one = command.get_command(parent, word)
            if one is not None and not one.hidden:
                yield f"{name} {word}", one


def _described(command: click.Command, parent: click.Context, name: str) -> list[str]:
    """Return usage, help and options of one command, as click prints them."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([f"finegauge {name}", *command.collect_usage_pieces(context)])
    lines = ["```", usage, "```", "", *_paragraphs(command.help or ""), ""]
    records = [(param, param.get_help_record(context)) for param in command.get_params(context)]
    lines += ["| option | |", "|---|---|"]
    for param, record in records:
        if record is not None and (record[1] or isinstance(param, click.Option)):
            lines.append(f"| `{record[0]}` | {_cell(record[1])} |")
    return [*lines, ""]


def _paragraphs(text: str) -> list[str]:
    """Return a docstring as Markdown: what click is told not to wrap stays as it is, in a block."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\f")[0].split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [_escaped(paragraph), ""]
    return lines


def _cell(text: str) -> str:
    """Return `text` as it may stand in a cell of a table."""
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return `text` without the marks that Markdown would take for its own."""
    return text.replace("*", "\\*").replace("<", "&lt;").replace("$", "&#36;")


def _links(pages: list[str]) -> str:
    """Return ", and ..." with a link to every page; nothing where there is none."""
    if not pages:
        return ""
    names = [f"[{uri.removesuffix('.md').replace('/', ': ')}](../{uri})" for uri in sorted(pages)]
    return ", and " + ", ".join(names)
