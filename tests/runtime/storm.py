"""Kills and stops the processes of local runs at random moments, and checks what is left of each run.

    python tests/runtime/storm.py --runs 45 --kills 8 --seed 0

A run takes one architecture for a few seconds while a random process is killed (`SIGKILL`), stopped for good
(`SIGSTOP`) or paused (`SIGSTOP`, then `SIGCONT`), from the first process on and also while the run ends. Most runs end
when they are asked to, and only after an update that came after all of that. Others have a limit of seconds or steps,
or end with the death of their first process and are resumed.

Afterwards: no stall, no exit code 0 without an intact checkpoint at the last step, no process and no temporary file
left, the environments' own included.

It shares no code with the package, so that a fault there cannot hide itself here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MARK = "THESPIS_STORM"
ASK = "THESPIS_STORM_ASK"
SMALL = "--actors 2 --eval-episodes 2 --eval-every 3 --checkpoint-every 2 --report-every 0.5 --stall-timeout 40"
ARCHITECTURES: dict[str, str] = {
    "a2c": "",
    "a3c": "",
    "a3c+compressed": "--gradients topk --shards 2",
    "apex": "--replay.warm-up 200",
    "apex+learners": "--replay.warm-up 200 --learners 2",
    "apex+shards": "--replay.warm-up 200 --replay.shards 2",
    "apex-dpg": "--env storm_envs::continuous --replay.warm-up 200",
    "dqn": "--replay.warm-up 200",
    "es": "",
    "gorila": "--replay.warm-up 200",
    "gorila+global": "--replay-mode global --replay.warm-up 200",
    "impala": "",
    "impala+learners": "--learners 3 --actors 3",
    "parameter-server": "",
    "pbt": "",
    "pbt+local": "--member-on local --interval 2000 --population 4 --slots 2",
    "ppo": "",
    "ppo+learners": "--learners 2",
    "qtopt": "--env storm_envs::continuous",
    "r2d2": "--replay.warm-up 10",
    "r2d3": "--replay.warm-up 10",
    "seed": "",
    "seed+grpc": "--transport grpc",
    "seed+learners": "--learners 2",
}
"""Flags of each kind of run. A name is an architecture, up to a plus sign."""
RESTARTS = 3
"""Deaths a process may have before its run ends with an error, as it should."""


LIVE_SECONDS = 90.0
"""Time from the last kill to a checkpoint with more updates, on a busy machine."""
END_SECONDS = 5.0
"""How long processes are killed while the run ends."""
END_LIMIT = 240.0
"""Time from the last kill to the exit of a run; one with a limit of steps has them left to take."""
ENDS = ("request", "seconds", "steps", "death")
"""What ends a run. After the death of the first process, the run is resumed."""


@dataclass
class Result:
    """What became of one run."""

    architecture: str
    ends_by: str
    code: int = 0
    reason: str = ""
    struck: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    text: str = ""


def marked(mark: str) -> list[int]:
    """Living processes of a run, however deep below it they were started."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and mark.encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def role_processes(mark: str) -> dict[tuple[str, int], int]:
    """The processes of a run, and of the runs in it, by name and parent."""
    found: dict[tuple[str, int], int] = {}
    for pid in marked(mark):
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if status[0] != "Z" and "thespis.runtime.child" in words:
            found[words[words.index("thespis.runtime.child") + 1], int(status[1])] = pid
    return found


def updates(path: Path) -> int:
    """Updates at the newest checkpoint, or 0."""
    return max((int(point.name.split("-")[1]) for point in (path / "checkpoints").glob("update-*")), default=0)


class Storm:
    """What happens to one run."""

    def __init__(self, process: subprocess.Popen[str], mark: str, random_: random.Random) -> None:
        self.process, self._mark, self._random = process, mark, random_
        self._deaths: Counter[tuple[str, int]] = Counter()
        self.struck: Counter[str] = Counter()

    def strike(self, times: int, seconds: float) -> None:
        """Kill, stop or pause a random process at `times` moments from now on."""
        moments, started = sorted(self._random.uniform(0.0, seconds) for _ in range(times)), time.monotonic()
        for moment in moments:
            while time.monotonic() - started < moment and self.process.poll() is None:
                time.sleep(0.01)
            alive = {key: pid for key, pid in role_processes(self._mark).items() if self._deaths[key] < RESTARTS}
            if self.process.poll() is None and alive:
                self._strike(alive)

    def _strike(self, alive: dict[tuple[str, int], int]) -> None:
        key = self._random.choice(sorted(alive))
        how = self._random.choices(("kill", "stop", "pause"), (6, 1, 1))[0]
        try:
            os.kill(alive[key], signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            self.struck[how] += 1
            self._deaths[key] += how != "pause"
            if how == "pause":
                time.sleep(self._random.uniform(0.1, 2.0))
                os.kill(alive[key], signal.SIGCONT)
        except ProcessLookupError:
            return

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds or the run is over; return whether it does."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                return condition()
            time.sleep(0.05)
        return True


def perform(architecture: str, path: Path, random_: random.Random, kills: int, seconds: float, demos: Path) -> Result:
    """Train once in a storm, and judge it."""
    mark, ask, temporary = f"{MARK}={uuid.uuid4().hex}", Path(f"{path}.ask"), Path(f"{path}.tmp")
    temporary.mkdir()
    variables = dict(each.split("=", 1) for each in (mark, f"{ASK}={ask}", f"TMPDIR={temporary}"))
    result = Result(architecture, random_.choices(ENDS, (4, 1, 0 if architecture.startswith("pbt") else 1, 1))[0])
    process = start(["train", *words(result, path, random_, seconds, demos)], path.parent, variables)
    storm = Storm(process, mark, random_)
    storm.wait_for(lambda: bool(role_processes(mark)), 60.0)
    last = random_.randint(0, 3) if result.ends_by == "request" else 0
    storm.strike(kills - last, seconds + (0.0 if result.ends_by in ("request", "death") else END_SECONDS))
    if result.ends_by == "death":
        process.kill()
        process.communicate()
        check_nothing_left(result, mark)
        process = storm.process = start(["resume", str(path)], path.parent, variables)
    if result.ends_by in ("request", "death"):
        before = updates(path)
        if not storm.wait_for(lambda: updates(path) > before, LIVE_SECONDS):
            result.faults.append(f"no checkpoint with more than {before} updates since the last kill")
        ask.touch()
        storm.strike(last, END_SECONDS)
    try:
        _, result.text = process.communicate(timeout=END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        _, result.text = process.communicate()
        result.faults.append("no end")
    result.code, result.struck = process.returncode, storm.struck
    judge(result, path)
    check_nothing_left(result, mark)
    if any(temporary.iterdir()):
        result.faults.append(f"left {[str(entry) for entry in temporary.iterdir()]}")
    return result


def words(result: Result, path: Path, random_: random.Random, seconds: float, demos: Path) -> list[str]:
    """The arguments of a run."""
    name = result.architecture
    steps = 10**9  # members of a population share the steps
    limit = {
        "request": ["--callback", "storm_envs::EndsOnRequest"],
        "death": ["--callback", "storm_envs::EndsOnRequest"],
        "seconds": ["--total-seconds", str(seconds)],
        "steps": [],
    }[result.ends_by]
    if result.ends_by == "steps":
        steps = random_.randint(1000, 5000)
    if result.ends_by != "seconds" or name.startswith("pbt"):
        limit += ["--total-steps", str(steps)]
    flags = [*SMALL.split(), "--env", "storm_envs::discrete", *ARCHITECTURES[name].split()]
    if name == "r2d3":
        flags += ["--demos", str(demos)]
    return [name.partition("+")[0], *flags, *limit, "--run-dir", str(path)]


def start(arguments: list[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "runtime")])
    return subprocess.Popen(
        [sys.executable, "-m", "thespis.cli.main", *arguments],
        env={**os.environ, **variables, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def judge(result: Result, path: Path) -> None:
    """Add the faults of a run that is over."""
    summary = json.loads((path / "summary.json").read_text()) if (path / "summary.json").exists() else {}
    result.reason = str(summary.get("exit_reason"))
    if result.reason in ("stalled", "deadlock"):
        result.faults.append("stalled")
    saved = {intact(point): point for point in (path / "checkpoints").glob("update-*")}
    last = max(saved, default=-1)
    if result.code == 0 and last != summary.get("env_steps"):
        result.faults.append(f"exit 0 with a checkpoint of {last} steps, not {summary.get('env_steps')}")
    if result.code not in (0, 1) or "Traceback" in result.text:
        result.faults.append(f"exit code {result.code}")
    if result.code == 1 and "its last checkpoint was not saved" not in result.text:
        result.faults.append("ended with an error")


def check_nothing_left(result: Result, mark: str) -> None:
    """Add a fault if processes of the run outlive it."""
    deadline = time.monotonic() + 10.0
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = marked(mark)
    if left:
        result.faults.append(f"left {len(left)} processes")
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def intact(checkpoint: Path) -> int:
    """The steps of a checkpoint, or -1 if a file is missing or is not what was written."""
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    for name, entry in files.items():
        file = checkpoint / name
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
            return -1
    return int(json.loads((checkpoint / "meta.json").read_text())["env_steps"])


def table(results: list[Result]) -> str:
    """Runs, kills and faults by architecture."""
    lines = [f"{'':22}{'runs':>6}{'kills':>7}{'stops':>7}{'pauses':>8}{'exit 0':>8}{'exit 1':>8}{'faults':>8}"]
    for name in [*sorted({result.architecture for result in results}), "all"]:
        own = [result for result in results if name in (result.architecture, "all")]
        struck = sum((result.struck for result in own), Counter[str]())
        codes = Counter(result.code for result in own)
        faulty = sum(bool(result.faults) for result in own)
        lines.append(
            f"{name:22}{len(own):6}{struck['kill']:7}{struck['stop']:7}{struck['pause']:8}"
            f"{codes[0]:8}{codes[1]:8}{faulty:8}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--runs", type=int, default=len(ARCHITECTURES))
    parser.add_argument("--kills", type=int, default=8, help="per run")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the runs with faults here")
    args = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        demos = Path(folder) / "demos"
        if "r2d3" in args.architectures:
            sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
            from storm_envs import write_demonstrations

            write_demonstrations(demos)
        for number in range(args.runs):
            architecture = args.architectures[number % len(args.architectures)]
            random_ = random.Random(1000 * args.seed + number)
            path = Path(args.keep or folder) / f"{architecture}-{args.seed}-{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            result = perform(architecture, path, random_, args.kills, args.seconds, demos)
            results.append(result)
            took = time.monotonic() - began
            struck = " ".join(f"{number} {how}" for how, number in sorted(result.struck.items()))
            ended = f"exit {result.code} {result.reason:14}{took:6.1f} s"
            faults = "; ".join(result.faults) or "ok"
            print(f"{number:3} {architecture:22}{result.ends_by:9}{struck:24} {ended}  {faults}")
            if result.faults or result.code:
                print("    " + result.text.strip().replace("\n", "\n    "))
            sys.stdout.flush()
    print(table(results))
    return any(result.faults for result in results)


if __name__ == "__main__":
    sys.exit(main())
