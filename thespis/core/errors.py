"""The errors a user can cause, told apart from the ones we cause."""

from __future__ import annotations


class ThespisError(Exception):
    """Something the user can mend. The command line prints it as one line and exits with code 2."""


class ThespisWarning(UserWarning):
    """Something the user should know of, although what was asked for is done. The command line prints it as a line."""


class EnvError(Exception):
    """An environment raised, or returned something no learner may see. Names the env, episode and step."""

    def __init__(self, what: str, *, env: int | None, episode: int | None, step: int | None) -> None:
        where = ", ".join(
            f"{name} {value}"
            for name, value in (("env", env), ("episode", episode), ("step", step))
            if value is not None
        )
        super().__init__(f"{where}: {what}" if where else what)


class NonFiniteLoss(ArithmeticError):
    """The loss of a batch is NaN or infinite. Its gradients must not be applied: skip the batch and count it."""
