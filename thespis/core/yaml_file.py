"""Reading a small YAML file that somebody may have got wrong, or meant ill with."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError
from thespis.core.system.files import open_regular

_BYTES = 256 << 10
_VALUES, _DEPTH = 20_000, 32
"""A few lines of aliases stand for billions of values, so these are counted as they would be printed."""


def read_yaml(path: Path, what: str) -> Any:
    """The content; whatever is wrong with it is told as `what` that cannot be read."""
    import yaml

    try:
        with open_regular(path) as file:
            data = file.read(_BYTES + 1)
        if len(data) > _BYTES:
            raise ValueError(f"it is larger than {_BYTES >> 10} kB")
        if _deepest(data) > 4 * _DEPTH:  # told here, since the parser takes seconds to find that out
            raise ValueError("it is nested too deeply")
        content = yaml.safe_load(data.decode())
        _count(content, _VALUES, _DEPTH)
    except OSError as error:
        raise ThespisError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ThespisError(f"{what} {path} cannot be read: it is not a text file") from error
    except RecursionError as error:
        raise ThespisError(f"{what} {path} cannot be read: it is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ThespisError(f"{what} {path} cannot be read: {str(error)[:300]}") from error
    return content


def _deepest(data: bytes) -> int:
    opened = itertools.accumulate((byte in b"[{") - (byte in b"]}") for byte in data)
    return max(opened, default=0)


def _count(content: Any, left: int, depth: int) -> int:
    """How many values may still follow."""
    if depth < 0:
        raise ValueError("it is nested too deeply")
    if left < 0:
        raise ValueError(f"it has more than {_VALUES} values")
    if isinstance(content, dict):
        content = [*content.keys(), *content.values()]
    for item in content if isinstance(content, list | tuple | set) else ():
        left = _count(item, left - 1, depth - 1)
    return left
