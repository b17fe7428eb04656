"""Tests an environment in a separate process before a run starts: make, reset, step once, close.

An error is reported at once, with the user's lines of the traceback, and neither a hang nor a crash affects the driver.
Environments of Gymnasium, ale-py and Thespis are known to work and are only made.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import gymnasium as gym

from thespis.core.env_config import EnvConfig
from thespis.core.errors import EnvError, ThespisError
from thespis.core.import_guard import importing
from thespis.core.system.reaper import RUN_MARK, reaped
from thespis.core.user_code import resolve
from thespis.envs.inputs import first_inputs
from thespis.envs.make import describe_env, find_env, make_envs
from thespis.envs.space_json import dump_spaces, load_spaces
from thespis.envs.spaces import Spaces
from thespis.runtime.process import ENVIRONMENT, die_with_parent

_BUILTIN = ("gymnasium.envs.", "ale_py.", "thespis.envs.")
_START_SECONDS = 300.0
"""Time limit for the start of the process; imports over a network can take minutes."""
_HIDDEN = (
    "<frozen",
    *(str(Path(module.__file__ or "").parent) for module in (gym, importlib)),
    str(Path(__file__).parents[1]),
)
"""Paths whose lines are removed from a traceback."""
_LINES = 12


def probe(cfg: EnvConfig, seconds: float) -> tuple[Spaces, list[str]]:
    """Return the spaces and notes for the user. Raise ThespisError if the environment does not work.

    `seconds`: time limit of each call.
    """
    if _is_builtin(cfg):
        return describe_env(cfg), []
    import cloudpickle

    try:
        request = pickle.dumps([path or str(Path.cwd()) for path in sys.path]) + cloudpickle.dumps(cfg)
    except Exception:  # no other process can receive it; a run with processes reports that later
        return describe_env(cfg), []
    mark = uuid.uuid4().hex
    ours, theirs = os.pipe()
    # Processes of the environment end with the probe, also if this process is killed.
    with (
        reaped(RUN_MARK, mark),
        tempfile.TemporaryFile() as printed,
        open(ours, "rb", buffering=0) as pipe,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "thespis.runtime.env_probe", str(theirs), str(os.getpid())],
            pass_fds=(theirs,),
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            env={**ENVIRONMENT, **os.environ, RUN_MARK: mark},
        )
        os.close(theirs)
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(request)
            return _Probe(cfg, process, pipe, printed).result(seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Probe:
    """The parent's side: reads the child's messages and interprets its end."""

    def __init__(self, cfg: EnvConfig, process: subprocess.Popen[bytes], pipe: Any, printed: IO[bytes]) -> None:
        self._name, self._process, self._pipe, self._printed = cfg.name, process, pipe, printed
        self._stage = "start"
        self._state: dict[str, Any] = {}
        self._rest = b""

    def result(self, seconds: float) -> tuple[Spaces, list[str]]:
        wrong = self._receive(seconds)
        if "error" in self._state:
            raise self._error(self._explained(self._state["error"], self._state["complete"]), self._state["trace"])
        if "spaces" not in self._state:
            raise self._error(f"environment {self._name!r} {wrong}", self._last_lines())
        notes = [f"environment {self._name!r} {wrong}; training continues"] if wrong else []
        return load_spaces(json.dumps(self._state["spaces"]), "the environment"), notes + self._state.get("notes", [])

    def _receive(self, seconds: float) -> str | None:
        """Read messages until the child ends; return what went wrong, or None."""
        while True:
            limit = _START_SECONDS if self._stage in ("start", "import") else seconds
            readable, _, _ = select.select([self._pipe], [], [], limit)
            if not readable:
                return f"did not return from {self._stage} within {limit:g} s; raise --env-timeout if that is too short"
            data = os.read(self._pipe.fileno(), 1 << 16)
            if not data:
                code = self._process.wait()
                ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"took its process down in {self._stage}: it {ended}" if code else None
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._state |= json.loads(line)
            self._stage = self._state.get("stage", self._stage)

    def _explained(self, what: str, complete: bool) -> str:
        """Build the error message. `complete`: `what` is already a full sentence."""
        if what.startswith("unknown environment") and self._name in gym.registry:
            return (
                f"environment {self._name!r} is registered only in this process; give module:{self._name} with the "
                "module that registers it, or as env the function that makes it"
            )
        return (
            what if complete else f"environment {self._name!r} fails in {self._stage}, so nothing was started: {what}"
        )

    def _last_lines(self) -> str:
        self._printed.seek(0)
        return "\n".join(self._printed.read().decode(errors="replace").splitlines()[-_LINES:])

    @staticmethod
    def _error(what: str, detail: str) -> ThespisError:
        error = ThespisError(what)
        if detail:
            error.add_note(detail)
        return error


def _is_builtin(cfg: EnvConfig) -> bool:
    """Return whether an environment contains no code of the user."""
    if not isinstance(cfg.env, str) or ":" in cfg.env or cfg.wrappers:
        return False
    entry_point = find_env(cfg.env).entry_point
    return isinstance(entry_point, str) and entry_point.startswith(_BUILTIN)


def _run_stages(request: IO[bytes], report: Any) -> None:
    """The child's side: report every stage before it starts."""
    report(stage="import")
    with importing():
        sys.path[:] = pickle.load(request)
        cfg: EnvConfig = pickle.load(request)
    found = [resolve(named) for named in (cfg.env, *cfg.wrappers)]
    if isinstance(found[0], str):
        find_env(found[0])
    report(stage="__init__")
    envs = make_envs(cfg, 1)
    report(stage="reset")
    inputs = first_inputs(envs.reset(0), envs)
    report(stage="step")
    envs.step(inputs.last_action)
    report(spaces=dump_spaces(Spaces(envs.observation_space, envs.action_space)), stage="close")
    try:
        envs.close()
    except Exception as error:
        report(notes=[f"environment {cfg.name!r}: close raised {type(error).__name__}: {error}; training continues"])


def _own_lines(error: BaseException) -> str:
    """Return the traceback of the first cause, without lines of Thespis and Gymnasium."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_HIDDEN)]
    return "".join(traceback.format_list(own[-_LINES:])).rstrip()


def _main(arguments: list[str]) -> int:
    pipe, parent = map(int, arguments)
    die_with_parent(parent)

    def report(**what: Any) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    try:
        _run_stages(sys.stdin.buffer, report)
    except Exception as error:
        complete, line = isinstance(error, ThespisError), " ".join(str(error).split())
        if not isinstance(error, ThespisError | EnvError):
            line = f"{type(error).__name__}: {line}"
        report(error=line, complete=complete, trace=_own_lines(error))
    return 0


if __name__ == "__main__":
    code = _main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skip the interpreter's teardown, as the processes of a run do
