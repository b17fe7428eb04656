"""Checks that a command can write its output, made before its work starts."""

from __future__ import annotations

from pathlib import Path

from thespis.core.errors import ThespisError


def check_file(path: Path, flag: str) -> None:
    """Reject a file that cannot be created or written. An existing file stays unchanged."""
    try:
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise _refusal(path, flag, error) from None


def check_directory(path: Path, flag: str) -> None:
    """Reject a directory that cannot be created. An existing directory is accepted."""
    made: list[Path] = []
    try:
        for parent in [*reversed(path.parents), path]:
            if not parent.is_dir():
                parent.mkdir()
                made.append(parent)
    except (OSError, ValueError) as error:
        raise _refusal(path, flag, error) from None
    finally:
        for directory in reversed(made):
            directory.rmdir()


def _refusal(path: Path, flag: str, error: Exception) -> ThespisError:
    reason = getattr(error, "strerror", None) or error
    return ThespisError(f"{path} cannot be written ({reason}); give another {flag}")
