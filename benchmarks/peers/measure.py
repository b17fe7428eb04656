"""Measures one run of a driver: the lines it prints, its start-up time, and the memory of all its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thespis.core.system.reaper import marked

MARK = "THESPIS_PEER_RUN"
"""Environment variable that marks all processes of a run; descendants inherit it."""
_WARM_UP = 0.25
"""Fraction of a run that does not count for its speed: first calls are slow, and some libraries learn late."""
_START_SECONDS = 180.0


class Run:
    """A command and all its processes. Other output than JSON is kept, to report why the command failed."""

    def __init__(self, command: Sequence[str], more: dict[str, str]) -> None:
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.lines: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.peak_mb = 0.0
        self.first_line: float | None = None
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **more, name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the command was killed after `seconds`. Leaves no process behind."""
        reader = threading.Thread(target=self._read)
        reader.start()
        deadline = time.monotonic() + seconds
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                self._weigh()
                time.sleep(0.5)
            return self._process.poll()
        finally:
            for pid in self.processes():
                _kill(pid)
            self._process.wait()
            reader.join()

    def processes(self) -> list[int]:
        """Return the live processes of the run."""
        return marked(self.mark)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                result = _parse(line)
                if result is not None:
                    self.lines.append(result)
                    if self.first_line is None:
                        self.first_line = time.monotonic() - self._started - result["seconds"]
                elif line.strip():
                    self.said = [*self.said[-20:], line.strip()]

    def _weigh(self) -> None:
        """Measure the memory; shared pages are divided among the processes that share them."""
        total = sum(filter(None, map(_proportional_kb, self.processes())))
        self.peak_mb = max(self.peak_mb, total / 1024)


def measure(command: Sequence[str], seconds: float, until: float | None, more: dict[str, str]) -> dict[str, Any]:
    """Run a driver for `seconds`, or until it reaches the return. The result has an `error` if the driver failed."""
    run = Run([*command, *_limits(seconds, until)], more)
    code = run.wait(seconds * 1.5 + _START_SECONDS)
    found: dict[str, Any] = {"peak_mb": run.peak_mb, "start_seconds": run.first_line}
    if code != 0 or not run.lines:
        reason = run.said[-1] if run.said else "it printed nothing"
        found["error"] = f"no end after {seconds * 1.5 + _START_SECONDS:.0f} s" if code is None else reason
    return {**found, **figures(run.lines, until)}


def figures(lines: Sequence[dict[str, Any]], until: float | None) -> dict[str, Any]:
    """Return steps per second after the warm-up, and seconds to the return; null for values that do not apply."""
    end = lines[-1]["seconds"] if lines else 0.0
    counted = [line for line in lines if line["seconds"] >= _WARM_UP * end]
    speed = None
    if len(counted) > 1:
        first, last = counted[0], counted[-1]
        speed = (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])
    reached = None
    if until is not None:
        reached = next((line for line in lines if line["return"] is not None and line["return"] >= until), None)
    return {
        "steps_per_second": speed,
        "seconds_to": reached and reached["seconds"],
        "steps_to": reached and reached["steps"],
        "return": lines[-1]["return"] if lines else None,
    }


def _limits(seconds: float, until: float | None) -> list[str]:
    return ["--seconds", str(seconds), *(["--until", str(until)] if until is not None else [])]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _parse(line: str) -> dict[str, Any] | None:
    """Return a driver's report; None for another line, or one that another process wrote into."""
    if not line.startswith('{"steps"'):
        return None
    try:
        result: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return result


def _proportional_kb(pid: int) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        return None  # the process has just exited
    return None
