"""Files of the repository that the documentation links to (schemas, examples), carried into the site.

A hook of MkDocs. In the repository a page links to where a file lies (`../examples/demo.py`), which
the site does not hold: the file is copied to `repository/` and the link follows it.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FOLDER = "repository"
_LINK = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside the documentation that a page links to."""
    for file in files.documentation_pages():
        for target in _LINK.findall(file.content_string):
            path = _outside(target, file, config)
            if path is not None and files.get_file_from_path(_place(path, config)) is None:
                files.append(File.generated(config, _place(path, config), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links following the files."""

    def moved(found: re.Match[str]) -> str:
        path = _outside(found.group(1), page.file, config)
        if path is None:
            return found.group(0)
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{_place(path, config)})"

    return _LINK.sub(moved, markdown)


def _outside(target: str, file: File, config: MkDocsConfig) -> Path | None:
    """Return the file that a link of `file` names where it lies outside the documentation, else None."""
    if file.abs_src_path is None:
        return None
    docs = Path(config.docs_dir).resolve()
    path = (Path(file.abs_src_path).parent / target).resolve()
    inside = path.is_relative_to(docs) or not path.is_relative_to(docs.parent)
    return None if inside or not path.is_file() or path.suffix == ".md" else path


def _place(path: Path, config: MkDocsConfig) -> str:
    """Return where in the site a file of the repository lies."""
    return f"{FOLDER}/{path.relative_to(Path(config.docs_dir).resolve().parent).as_posix()}"
