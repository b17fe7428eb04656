"""`thespis`: find the command, run it, turn what a user can mend into one line."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TextIO

HELP = """usage: thespis COMMAND ...

Distributed reinforcement learning: classic architectures, one short file each.

  train ARCH      train an agent, e.g. thespis train impala --env CartPole-v1
  resume RUN      continue a run from its newest valid checkpoint
  eval RUN        play episodes with a trained policy, --video FILE.gif|mp4 to watch
  record RUN      write episodes of a trained policy as demonstrations, --out DIR
  compare ARCH... train several on the same task and budget, and write a report
  plot RUN...     the curves of runs in one picture
  list            the architectures there are
  show ARCH       an architecture's roles and edges, --format mermaid to draw it

thespis COMMAND --help says more; thespis train ARCH --help lists every setting.
"""

_OWN_CODE = ("train", "compare", "show")
"""Commands that run code the user names. The others open runs, perhaps a stranger's, and one may stand in it."""
_COMMANDS = ("train", "resume", "eval", "record", "compare", "plot", "list", "show")


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 the run failed, 2 the user can mend it, 130 interrupted."""
    from thespis.core.errors import ThespisError
    from thespis.core.system.threads import limit_threads

    limit_threads()  # a simulated run takes place in this process
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        from thespis import __version__

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
        # The reader has seen enough (`thespis ... | head`); a second complaint at exit would help nobody.
        sys.stdout = None
        return 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"thespis: {what}", file=sys.stderr)
        return 2


def _run(words: list[str]) -> int:
    from thespis.core.errors import ThespisError

    if words[0] not in _COMMANDS:
        raise ThespisError(f"there is no command {words[0]!r}; there is {', '.join(_COMMANDS)}")
    command = importlib.import_module(f"thespis.cli.{words[0]}")
    if words[0] in _OWN_CODE:
        # As `python script.py` would: environments and networks of one's own are found where one stands.
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
    """Ours as one line, like an error; those of other packages as Python shows them."""
    from thespis.core.errors import ThespisWarning

    if issubclass(category, ThespisWarning):
        print(f"thespis: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
