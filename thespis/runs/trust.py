"""Whose code a run may execute: a config.yaml can name Python files and modules, and opening the run runs them.

Code that this user has trained with on this machine is remembered by where it is and whose file it is; a run that names
no other code opens without a question. All other code needs to be trusted first. What is remembered lies below the
user's state directory, where nobody else can write.
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
        named = ", ".join(f"{_shown(setting)}: {_shown(name)}" for setting, name in code.items())
        self.what = f"opening {path} runs code that its config.yaml names ({named})"
        super().__init__(f"{self.what}; {remedy}")


def code_of(architecture: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """What settings name that is executed, by setting: files, modules, and a Ray cluster, which sends pickles."""
    return dict(_walk("", {"architecture": architecture, **settings}))


def check(path: Path, code: Mapping[str, str], remedy: str = "pass trust=True if you trust whoever made it") -> None:
    """Raise `Untrusted` if the run at `path` names code that this user has not trained with.

    Code that is not there cannot be executed.
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
    """Note that this user trains with this code. Where nothing can be noted, opening the run asks."""
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
    """Names what is executed here; None if there is nothing. The same name may stand for other code elsewhere."""
    source, _, function = name.rpartition("=")[2].partition("::")
    if setting.endswith("ray_address"):
        parts: tuple[str, ...] = ("ray", name)
    elif source.endswith(".py"):
        if not os.path.exists(source):
            return None
        parts = (_place(source), function)
    else:
        origin = _origin(source)
        if origin is None:
            return None
        parts = (origin, source, function)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _origin(source: str) -> str | None:
    """Where the package of `module` or `module:EnvId` would be imported from; nothing of it is executed.

    None if there is no such package. A built-in module has no place of its own: an empty text.
    """
    top = source.partition(":")[0].partition(".")[0]
    try:
        found = PathFinder.find_spec(top, ["", *sys.path]) or importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    if found is None:
        return None
    places = [found.origin] if found.has_location and found.origin else list(found.submodule_search_locations or ())
    return _place(places[0]) if places else ""


def _place(path: str) -> str:
    """A file or directory, and whose it is."""
    real = os.path.realpath(path)
    return f"{real} of {os.stat(real).st_uid}" if os.path.exists(real) else real


def _shown(text: str) -> str:
    """As it can be printed: a name may hold escape sequences for the terminal."""
    return text if text.isprintable() else repr(text)


def _candidates() -> list[Path]:
    """Where to remember, the best place first. A container may have no home, or one that cannot be written."""
    places = []
    if given := os.environ.get("XDG_STATE_HOME"):
        places.append(Path(given))
    with suppress(RuntimeError):  # no HOME, and a user without a name
        places.append(Path.home() / ".local" / "state")
    return [place / "thespis" / "trusted" for place in places if place.is_absolute()] + [
        Path(tempfile.gettempdir()) / f"thespis-trusted-{os.geteuid()}"
    ]


def _private(directory: Path) -> bool:
    """Whether this user alone can write there."""
    try:
        about = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
