"""An environment that counts its steps in a file, outside its process, and kills the process once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym

from thespis.envs.toys import Chain


class Counted(Chain):
    """Appends a byte to the file THESPIS_TEST_COUNT at each step. The first process to take 301 steps kills itself."""

    def __init__(self) -> None:
        super().__init__()
        self._path, self._steps = Path(os.environ["THESPIS_TEST_COUNT"]), 0
        self._file = self._path.open("ab", buffering=0)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 301 and not (died := self._path.with_suffix(".died")).exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._file.write(b".")
        return super().step(action)

    def close(self) -> None:
        self._file.close()


def make() -> gym.Env[Any, Any]:
    return Counted()
