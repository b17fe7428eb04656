"""Which code a run may execute: config.yaml can name Python files and modules, and opening the run executes them.

Thespis remembers code that this user trained with on this machine, by path and file owner. A run that names only such
code opens without a question. All other code must be trusted first. The records lie in the user's state directory,
where no other user can write.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError


class Untrusted(ThespisError):
    """A run names code that this user has not trained with."""

    def __init__(self, path: Path, code: Mapping[str, str], remedy: str) -> None:
        named = ", ".join(f"{_printable(setting)}: {_printable(name)}" for setting, name in code.items())
        self.what = f"opening {path} runs code that its config.yaml names ({named})"
        super().__init__(f"{self.what}; {remedy}")


def code_of(architecture: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The executable values among settings, by setting: files, modules, and a Ray cluster, which sends pickles."""
    return dict(_walk("", {"architecture": architecture, **settings}))


def check_trusted(path: Path, code: Mapping[str, str], remedy: str = "pass trust=True if you trust its author") -> None:
    """Raise `Untrusted` if the run at `path` names code that this user has not trained with.

    Missing code cannot be executed, and passes.
    """
    known = [directory for directory in _candidates() if _private(directory)]
    unknown = {
        setting: name
        for setting, name in code.items()
        if (digest := _digest(setting, name)) and not any((directory / digest).is_file() for directory in known)
    }
    if unknown:
        raise Untrusted(path, unknown, remedy)


def remember(code: Mapping[str, str]) -> None:
    """Record that this user trains with this code. Without a writable directory, opening the run asks."""
    digests = [digest for setting, name in code.items() if (digest := _digest(setting, name))]
    for directory in _candidates() if digests else ():
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _private(directory):
                for digest in digests:
                    (directory / digest).touch(mode=0o600)
                return


def _walk(setting: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(f"{setting}.{key}" if setting else str(key), inner)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            yield from _walk(f"{setting}[{position}]", inner)
    elif isinstance(value, str):
        last = setting.rpartition(".")[2]
        named = "::" in value or value.endswith(".py") or (last == "env" and ":" in value)
        if named or (last == "ray_address" and value != "auto"):
            yield setting, value


def _digest(setting: str, name: str) -> str | None:
    """Identify the code at this name; None if there is none. The same name may be other code elsewhere."""
    source, _, function = name.rpartition("=")[2].partition("::")
    if setting.endswith("ray_address"):
        parts: tuple[str, ...] = ("ray", name)
    elif source.endswith(".py"):
        if not os.path.exists(source):
            return None
        parts = (_path_and_owner(source), function)
    else:
        origin = _origin(source)
        if origin is None:
            return None
        parts = (origin, source, function)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _origin(source: str) -> str | None:
    """The path that `module` or `module:EnvId` would be imported from, without executing it.

    None if there is no such package. A built-in module has no path: an empty string.
    """
    top = source.partition(":")[0].partition(".")[0]
    try:
        found = PathFinder.find_spec(top, ["", *sys.path]) or importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    if found is None:
        return None
    paths = [found.origin] if found.has_location and found.origin else list(found.submodule_search_locations or ())
    return _path_and_owner(paths[0]) if paths else ""


def _path_and_owner(path: str) -> str:
    """A file or directory, and its owner."""
    real = os.path.realpath(path)
    return f"{real} of {os.stat(real).st_uid}" if os.path.exists(real) else real


def _printable(text: str) -> str:
    """The text in printable form: a name may hold terminal escape sequences."""
    return text if text.isprintable() else repr(text)


def _candidates() -> list[Path]:
    """Directories for the records, the best first. A container may have no home directory, or a read-only one."""
    paths = []
    if given := os.environ.get("XDG_STATE_HOME"):
        paths.append(Path(given))
    with suppress(RuntimeError):  # no HOME, and a user without a name
        paths.append(Path.home() / ".local" / "state")
    return [place / "thespis" / "trusted" for place in paths if place.is_absolute()] + [
        Path(tempfile.gettempdir()) / f"thespis-trusted-{os.geteuid()}"
    ]


def _private(directory: Path) -> bool:
    """Whether only this user can write there."""
    try:
        about = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
