"""Reads the limits of this process's control groups, version 1 and 2. Containers and batch systems set limits there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def contents(controller: str, *, unified: str | None = None, legacy: str | None = None) -> list[str]:
    """Return the text of `controller.file` in the process's group and all its parents, innermost first.

    `unified` and `legacy` name the file in version 2 and version 1. Groups without the file are skipped.
    """
    files = [
        group / f"{controller}.{name}"
        for group, version in _groups(controller)
        if (name := unified if version == 2 else legacy) is not None
    ]
    return [text for file in files if (text := _read(file)) is not None]


def cgroup_limit(controller: str, *, unified: str, legacy: str) -> int | None:
    """Return the lowest limit in these files; None if no file holds a number."""
    found = contents(controller, unified=unified, legacy=legacy)
    return min((int(text) for text in found if text.isdecimal()), default=None)


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Iterate over the directories of the groups, with the version of their hierarchy."""
    for line in (_read(_SELF) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((group, 2) for group in _up(_ROOT, path))
        elif controller in controllers.split(","):
            yield from ((group, 1) for group in _up(_ROOT / controllers, path))


def _up(root: Path, path: str) -> list[Path]:
    """Return the group's directory and its parents. Inside a container the host's path may not exist."""
    group = root / path.strip("/")
    return [group, *(parent for parent in group.parents if parent == root or root in parent.parents)]


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
