"""Checks the built site: every local link has a target, and a browser loads nothing from another host.

python docs/_ext/check_site.py docs/_build/html
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"img": ("src", "srcset"), "script": ("src",), "link": ("href",), "iframe": ("src",), "source": ("src",)}
"""Attributes of resources that a browser loads by itself, unlike links that a reader follows."""
_FOREIGN = re.compile(r"(?:url\(|@import)\s*[\"']?\s*(?:https?:)?//")


class Page(HTMLParser):
    """Collects the anchors, links and resources of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag defines, links to and loads."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("canonical", "edit", "next", "prev", "index", "search"):
            return
        self.loaded += [given[name] for name in _LOADED.get(tag, ()) if given.get(name)]


def complaints(site: Path) -> list[str]:
    """Return the faults of the site, one line each."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {target}" for target in page.loaded if urlsplit(target).netloc]
        found += [f"{name} loads a style from another host" for _ in _FOREIGN.findall(path.read_text())]
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                found.append(f"{name} links to {target}, which does not exist")
            elif file in pages and unquote(parts.fragment) not in pages[file].anchors:
                found.append(f"{name} links to {target}, which has no such anchor")
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.svg")]):
        found += [f"{path.relative_to(site)} loads from another host" for _ in _FOREIGN.findall(path.read_text())]
    return found


if __name__ == "__main__":
    wrong = complaints(Path(sys.argv[1]).resolve())
    print("\n".join(wrong) or "every local link has a target, and nothing is loaded from another host")
    sys.exit(bool(wrong))
