"""The `thespis` command: dispatches to a command's module and prints a user error as one line."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TextIO

from thespis import __version__
from thespis.core.errors import ThespisError, ThespisWarning
from thespis.core.system.threads import limit_threads

HELP = """usage: thespis COMMAND ...

Distributed reinforcement learning: classic architectures, one short file each.

  train ARCH      train a policy, e.g. thespis train impala --env CartPole-v1
  resume RUN      continue a run from its newest valid checkpoint
  eval RUN        play episodes with a trained policy; --video FILE.gif records a video
  record RUN      save episodes of a trained policy as demonstrations; --out DIR
  compare ARCH... train several architectures on one task and budget, and write a report
  plot RUN...     plot the learning curves of runs
  list            list the architectures and their algorithms
  show ARCH       show an architecture's roles and edges; --format mermaid draws them

thespis COMMAND --help describes a command; thespis train ARCH --help lists every setting.
"""

_OWN_CODE = ("train", "compare", "show")
"""Commands that import the user's code from the working directory.

The other commands open runs. The working directory may be inside an untrusted run, so they do not import from it.
"""
_COMMANDS = ("train", "resume", "eval", "record", "compare", "plot", "list", "show")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 failed run, 2 user error, 130 interrupted."""
    limit_threads()  # a simulated run trains in this process
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"thespis {__version__}")
        return 0
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(words)
    except ThespisError as error:
        print(f"thespis: {' '.join(str(error).split())}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):  # the user's own lines of a traceback
            print(f"\n{note}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (`thespis ... | head`). Without stdout, the flush at exit cannot fail again.
        sys.stdout = None
        return 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"thespis: {what}", file=sys.stderr)
        return 2


def _run(words: list[str]) -> int:
    if words[0] not in _COMMANDS:
        raise ThespisError(f"there is no command {words[0]!r}; the commands are {', '.join(_COMMANDS)}")
    command = importlib.import_module(f"thespis.cli.{words[0]}")
    if words[0] in _OWN_CODE:
        # As `python script.py` does: custom environments and networks are imported from the working directory.
        sys.path.insert(0, "")
    code: int = command.run(words[1:])
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of Thespis as one line, like an error, and any other warning as Python does."""
    if issubclass(category, ThespisWarning):
        print(f"thespis: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
