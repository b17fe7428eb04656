"""What the control groups of this process allow, in either hierarchy: containers and batch systems set limits there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def contents(controller: str, *, unified: str | None = None, legacy: str | None = None) -> list[str]:
    """The text of `controller.file` in the group of this process and in all groups above it, innermost first.

    `unified` and `legacy` name the file in version 2 and version 1. A group without the file is left out.
    """
    files = [
        group / f"{controller}.{name}"
        for group, version in _groups(controller)
        if (name := unified if version == 2 else legacy) is not None
    ]
    return [text for file in files if (text := _read(file)) is not None]


def limit(controller: str, *, unified: str, legacy: str) -> int | None:
    """The least of these numbers; None if there is none, or if all of them say `max`."""
    found = contents(controller, unified=unified, legacy=legacy)
    return min((int(text) for text in found if text.isdecimal()), default=None)


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """The directories of the groups, with the version of their hierarchy."""
    for line in (_read(_SELF) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((group, 2) for group in _up(_ROOT, path))
        elif controller in controllers.split(","):
            yield from ((group, 1) for group in _up(_ROOT / controllers, path))


def _up(root: Path, path: str) -> list[Path]:
    """The group and all it is part of. In a container the path may be one of the machine's, which is not seen there."""
    group = root / path.strip("/")
    return [group, *(parent for parent in group.parents if parent == root or root in parent.parents)]


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
