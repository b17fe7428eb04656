"""An environment tried in a process of its own before a run starts: made, reset, stepped once, closed.

What is broken is then told at once, with the user's own lines of the traceback, and neither a hang nor a crash takes
the driver with it. Environments that come with Gymnasium, ale-py and Thespis are known to be sound, and only made.
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
from thespis.core.system.reaper import guarded
from thespis.core.user_code import resolve
from thespis.envs.make import describe, find
from thespis.envs.space_json import dump_spaces, load_spaces
from thespis.envs.spaces import Spaces
from thespis.runtime.process import ENVIRONMENT, RUN_MARK, die_with_parent

_STOCK = ("gymnasium.envs.", "ale_py.", "thespis.envs.")
_START_SECONDS = 300.0
"""How long the process may take to start: imports over a network can take minutes."""
_HIDDEN = (
    "<frozen",
    *(str(Path(module.__file__ or "").parent) for module in (gym, importlib)),
    str(Path(__file__).parents[1]),
)
"""Where the lines of a traceback stand that say nothing about the user's code."""
_LINES = 12


def probe(cfg: EnvConfig, seconds: float) -> tuple[Spaces, list[str]]:
    """The spaces, and what to note; ThespisError if the environment cannot be trained in.

    `seconds`: how long each of its calls may take.
    """
    if _stock(cfg):
        return describe(cfg), []
    import cloudpickle

    try:
        order = pickle.dumps([path or str(Path.cwd()) for path in sys.path]) + cloudpickle.dumps(cfg)
    except Exception:  # then no other process can have it; where there are others, they say so
        return describe(cfg), []
    mark = uuid.uuid4().hex
    ours, theirs = os.pipe()
    # What the environment starts ends with the trial, also if this process is killed meanwhile.
    with (
        guarded(RUN_MARK, mark),
        tempfile.TemporaryFile() as printed,
        open(ours, "rb", buffering=0) as answers,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "thespis.runtime.probe", str(theirs), str(os.getpid())],
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
                stdin.write(order)
            return _Trial(cfg, process, answers, printed).result(seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Trial:
    """The parent's side: what the process says, and what its silence means."""

    def __init__(self, cfg: EnvConfig, process: subprocess.Popen[bytes], answers: Any, printed: IO[bytes]) -> None:
        self._name, self._process, self._answers, self._printed = cfg.name, process, answers, printed
        self._stage = "start"
        self._said: dict[str, Any] = {}
        self._rest = b""

    def result(self, seconds: float) -> tuple[Spaces, list[str]]:
        wrong = self._listen(seconds)
        if "error" in self._said:
            raise self._error(self._explained(self._said["error"], self._said["told"]), self._said["trace"])
        if "spaces" not in self._said:
            raise self._error(f"environment {self._name!r} {wrong}", self._last_lines())
        notes = [f"environment {self._name!r} {wrong}; training goes on"] if wrong else []
        return load_spaces(json.dumps(self._said["spaces"]), "the environment"), notes + self._said.get("notes", [])

    def _listen(self, seconds: float) -> str | None:
        """Take in what it says until it has ended; what went wrong if it did not end well."""
        while True:
            limit = _START_SECONDS if self._stage in ("start", "import") else seconds
            readable, _, _ = select.select([self._answers], [], [], limit)
            if not readable:
                return f"did not return from {self._stage} within {limit:g} s; raise --env-timeout if that is too short"
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                code = self._process.wait()
                ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return f"took its process down in {self._stage}: it {ended}" if code else None
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._said |= json.loads(line)
            self._stage = self._said.get("stage", self._stage)

    def _explained(self, what: str, told: bool) -> str:
        """`told`: `what` is a whole sentence already."""
        if what.startswith("unknown environment") and self._name in gym.registry:
            return (
                f"environment {self._name!r} is registered in this process alone; give module:{self._name} with the "
                "module that registers it, or as env the function that makes it"
            )
        return what if told else f"environment {self._name!r} fails in {self._stage}, so nothing was started: {what}"

    def _last_lines(self) -> str:
        self._printed.seek(0)
        return "\n".join(self._printed.read().decode(errors="replace").splitlines()[-_LINES:])

    @staticmethod
    def _error(what: str, detail: str) -> ThespisError:
        error = ThespisError(what)
        if detail:
            error.add_note(detail)
        return error


def _stock(cfg: EnvConfig) -> bool:
    """Whether nothing of it is the user's own code."""
    if not isinstance(cfg.env, str) or ":" in cfg.env or cfg.wrappers:
        return False
    made_by = find(cfg.env).entry_point
    return isinstance(made_by, str) and made_by.startswith(_STOCK)


def _try(order: IO[bytes], tell: Any) -> None:
    """The child's side: every stage is told before it is entered."""
    from thespis.core.importing import importing
    from thespis.envs.inputs import first_inputs
    from thespis.envs.make import make

    tell(stage="import")
    with importing():
        sys.path[:] = pickle.load(order)
        cfg: EnvConfig = pickle.load(order)
    found = [resolve(named) for named in (cfg.env, *cfg.wrappers)]
    if isinstance(found[0], str):
        find(found[0])
    tell(stage="__init__")
    envs = make(cfg, 1)
    tell(stage="reset")
    inputs = first_inputs(envs.reset(0), envs)
    tell(stage="step")
    envs.step(inputs.last_action)
    tell(spaces=dump_spaces(Spaces(envs.observation_space, envs.action_space)), stage="close")
    try:
        envs.close()
    except Exception as error:
        tell(notes=[f"environment {cfg.name!r}: close raised {type(error).__name__}: {error}; training goes on"])


def _own_lines(error: BaseException) -> str:
    """The traceback without the lines of Thespis and Gymnasium, from the first cause on."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_HIDDEN)]
    return "".join(traceback.format_list(own[-_LINES:])).rstrip()


def main(arguments: list[str]) -> int:
    answers, parent = map(int, arguments)
    die_with_parent(parent)

    def tell(**what: Any) -> None:
        os.write(answers, json.dumps(what).encode() + b"\n")

    try:
        _try(sys.stdin.buffer, tell)
    except Exception as error:
        told, line = isinstance(error, ThespisError), " ".join(str(error).split())
        if not isinstance(error, ThespisError | EnvError):
            line = f"{type(error).__name__}: {line}"
        tell(error=line, told=told, trace=_own_lines(error))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # past the interpreter's own teardown, as the processes of a run end
