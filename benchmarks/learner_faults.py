"""Measures what faults cost a group of learners: lost updates, and seconds until it continues and is complete again.

python benchmarks/learner_faults.py [--learners 3] [--seconds 600] [--every 30] [--on local] [--all-reduce group]

Runs without and with faults follow each other. The faults alternate: a learner is killed, and a learner is stopped and
continued after 6 seconds. Times are measured from outside, so they include a report interval of 0.1 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STOPPED_SECONDS = 6.0
FLAGS = "--env CartPole-v1 --eval-episodes 0 --report-every 0.1 --checkpoint-every 10"


class Run:
    """A run of several learners in the background."""

    def __init__(self, path: Path, learners: int, seconds: float, on: str, all_reduce: str) -> None:
        self.path, self.learners = path, learners
        flags = f"--on {on} --learners {learners} --actors {learners} --total-seconds {seconds} --run-dir {path}"
        flags += f" --all-reduce {all_reduce}"
        words = [sys.executable, "-m", "thespis.cli.main", "train", "impala", *FLAGS.split(), *flags.split()]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._read = 0

    def members(self) -> list[float]:
        """Mean number of learners in the rounds of each row of metrics since the last call."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        rows, self._read = [json.loads(line) for line in lines[self._read :]], len(lines)
        return [row["group/learners"] for row in rows if "group/learners" in row]

    def wait(self, condition: Callable[[float], bool]) -> float:
        """Seconds until a row of metrics meets a condition."""
        started = time.monotonic()
        while not any(map(condition, self.members())):
            if self.process.poll() is not None:
                raise RuntimeError("the run has ended")
            time.sleep(0.02)
        return time.monotonic() - started

    def wait_for_process(self, learner: int, after: int) -> float:
        """Seconds until the learner has another process than `after`: a new one on local, one that is up on Ray."""
        started = time.monotonic()
        while self.pid(learner) in (None, after):
            if self.process.poll() is not None:
                raise RuntimeError("the run has ended")
            time.sleep(0.02)
        return time.monotonic() - started

    def pid(self, learner: int) -> int | None:
        """The process of a learner; None while Ray places and starts it."""
        found: int | None = json.loads((self.path / "topology.json").read_text())["pids"].get(f"learner-{learner}")
        return found

    def summary(self) -> dict[str, Any]:
        if self.process.wait() != 0:
            raise RuntimeError(f"exit code {self.process.returncode}")
        found: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return found

    def close(self) -> None:
        """Interrupt the run if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()


def harm(run: Run, every: float, until: float) -> None:
    """Kill and stop learners in turn; print how long the others waited and when the group was complete again."""
    whole = float(run.learners)
    run.wait(lambda members: members == whole)
    for number in itertools.count():
        time.sleep(every / 2)
        if time.monotonic() > until - every:
            return
        victim, kill = number % run.learners, number % 2 == 0
        pid = run.pid(victim)
        assert pid is not None, "all learners take part"
        os.kill(pid, signal.SIGKILL if kill else signal.SIGSTOP)
        run.members()
        others = run.wait(lambda members: members < whole)
        if kill:
            away = run.wait_for_process(victim, pid)
        else:
            time.sleep(away := max(0.0, _STOPPED_SECONDS - others))
            os.kill(pid, signal.SIGCONT)
        back = run.wait(lambda members: members == whole)
        what, again = ("killed", "started") if kill else (f"stopped for {_STOPPED_SECONDS:g} s", "continued")
        print(
            f"learner {victim} {what}: the others continued after {others:.2f} s; {again} {away:.2f} s later, and took "
            f"part after {back:.2f} s",
            flush=True,
        )
        time.sleep(max(0.0, every / 2 - others - away - back))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--learners", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each run")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two faults")
    parser.add_argument("--on", default="local", help="local or ray")
    parser.add_argument("--all-reduce", default="group", help="group or gloo")
    args = parser.parse_args()
    rates = []
    for faults in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            run = Run(Path(directory) / "run", args.learners, args.seconds, args.on, args.all_reduce)
            try:
                if faults:
                    harm(run, args.every, time.monotonic() + args.seconds)
                summary = run.summary()
            finally:
                run.close()
            rates.append(summary["updates"] / args.seconds)
            print(f"{'with' if faults else 'without'} faults: {rates[-1]:.1f} updates/s, {summary['learner_events']}")
    print(f"{rates[1] / rates[0]:.3f} of the updates of an undisturbed run")


if __name__ == "__main__":
    main()
