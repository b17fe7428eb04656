"""Reads small YAML files that may be malformed or malicious."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from thespis.core.errors import ThespisError
from thespis.core.system.files import open_regular

_BYTES = 256 << 10
_VALUES, _DEPTH = 20_000, 32
"""Limits of values and nesting. A few lines of aliases can expand to billions of values, so every use counts."""


def read_yaml(path: Path, what: str) -> Any:
    """Return the content; raise a `ThespisError` that `what` cannot be read, with the reason."""
    import yaml

    try:
        with open_regular(path) as file:
            data = file.read(_BYTES + 1)
        if len(data) > _BYTES:
            raise ValueError(f"it is larger than {_BYTES >> 10} kB")
        if _deepest(data) > 4 * _DEPTH:  # checked first, since the parser takes seconds to notice
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
    """Return how many of the `left` values remain after `content`."""
    if depth < 0:
        raise ValueError("it is nested too deeply")
    if left < 0:
        raise ValueError(f"it has more than {_VALUES} values")
    if isinstance(content, dict):
        content = [*content.keys(), *content.values()]
    for item in content if isinstance(content, list | tuple | set) else ():
        left = _count(item, left - 1, depth - 1)
    return left
