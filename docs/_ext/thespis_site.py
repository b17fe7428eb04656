"""The Sphinx extension of the site: prepares every page, and writes the reference pages from the code.

A page stays readable on its own: relative links to files, mermaid diagrams. Before a page is parsed, links to files
outside `docs` become links to the repository, diagrams become inline SVG, and a line `<!-- generated: NAME ... -->`
is replaced by what `thespis_reference` writes under that name.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import thespis_reference
from docutils import nodes
from thespis_docstrings import as_restructured_text

FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,})[^\n]*\n.*?^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE)
DIAGRAM = re.compile(
    r"`(?P<command>thespis show [^`\n]*)--format mermaid`(?P<rest>[^\n]*\n\n)```mermaid\n.*?```", re.DOTALL
)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
GENERATED = re.compile(r"^[^\n]*<!-- generated: (?P<words>[^\n]*?) -->$", re.MULTILINE)
_SHORT = 26
"""Longest inline code, in characters, that is kept on one line."""
_SHORT_FLAG = 34
"""The same for a flag: a line break after its hyphens would look like another flag."""
_PAGE_TEXT = re.compile(r"`?(?:\.\./)*(?:docs/)?[\w/-]+\.md`?")


def prepare(text: str, page: str, docs: Path, repository: str) -> str:
    """Convert the Markdown of a page for the site. `page`: its path below docs, without the suffix."""
    text = GENERATED.sub(lambda found: thespis_reference.generate(found["words"].split()), text)
    text = DIAGRAM.sub(lambda found: _drawn(found["command"], found["rest"]), text)
    return outside_fences(text, lambda part: LINK.sub(lambda found: _link(found, page, docs, repository), part))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to the text outside its code blocks."""
    parts, start = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, change(text[start:])])


def _link(found: re.Match[str], page: str, docs: Path, repository: str) -> str:
    """Return a link to a page, or to a file of the repository that is not a page."""
    target, text = found["target"], found["text"]
    if found["image"] or re.match(r"[a-z]+:", target):
        return found[0]
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if path.startswith("docs/") and path.endswith(".md"):
        # If a link shows a file name, the site shows the title of the page instead.
        text = "" if _PAGE_TEXT.fullmatch(text) else text
        return f"[{text}]({target}{found['anchor'] or ''})"
    kind = "tree" if (docs.parent / path).is_dir() else "blob"
    return f"[{text}]({repository}/{kind}/main/{path}{found['anchor'] or ''})"


def _drawn(command: str, rest: str) -> str:
    return f"`{command}--format svg`{rest}{thespis_reference.drawing(command.split()[2:])}"


def run(words: list[str]) -> str:
    """Return the output of a `thespis` command."""
    from thespis.cli.main import main

    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    if code:
        raise RuntimeError(f"thespis {' '.join(words)} exits with {code}: {said.getvalue()}")
    return printed.getvalue().rstrip("\n")


def _on_source(app: Any, page: str, source: list[str]) -> None:
    text = prepare(source[0], page, Path(app.srcdir), app.config.repository_url)
    terms = app.config.search_terms.get(page, [])
    if terms:
        title, newline, below = text.partition("\n")
        text = f"{title}{newline}\n```{{index}} {', '.join(f'! {term}' for term in terms)}\n```\n{below}"
    source[0] = text


def _on_include(app: Any, path: Path, parent: str, content: list[str]) -> None:
    content[0] = prepare(content[0], "../included", Path(app.srcdir), app.config.repository_url)


def _on_docstring(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


def _on_resolved(app: Any, tree: nodes.document, name: str) -> None:
    for literal in tree.findall(nodes.literal):
        text = literal.astext()
        if len(text) <= (_SHORT_FLAG if text.startswith("--") and " " not in text else _SHORT):
            literal["classes"].append("short")


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("repository_url", "", "env")
    app.add_config_value("repository_branch", "main", "env")
    app.add_config_value("search_terms", {}, "env")
    app.connect("source-read", _on_source)
    app.connect("include-read", _on_include)
    app.connect("autodoc-process-docstring", _on_docstring)
    app.connect("doctree-resolved", _on_resolved)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
