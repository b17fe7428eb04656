"""Errors that a user can cause and correct, as opposed to errors in Thespis itself."""

from __future__ import annotations


class ThespisError(Exception):
    """An error that the user can correct. The command line prints it as one line and exits with code 2."""


class ThespisWarning(UserWarning):
    """A warning to the user; the command continues. The command line prints it as one line."""


class EnvError(Exception):
    """An environment raised, or returned a value that must not reach a learner. Names the env, episode and step."""

    def __init__(self, what: str, *, env: int | None, episode: int | None, step: int | None) -> None:
        where = ", ".join(
            f"{name} {value}"
            for name, value in (("env", env), ("episode", episode), ("step", step))
            if value is not None
        )
        super().__init__(f"{where}: {what}" if where else what)


FOREIGN_ERRORS = (Exception, SystemExit)
"""What code of an environment may raise. `sys.exit` in it must not end a process as if the run were over."""


def describe_error(error: BaseException) -> str:
    """The type and the message of an error."""
    return f"{type(error).__name__}: {error}"


class NonFiniteLoss(ArithmeticError):
    """The loss of a batch is NaN or infinite. The caller skips the batch and counts it."""
