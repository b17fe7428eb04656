"""Kills and stops the processes of local runs at random moments, and checks what is left of each run.

    python tests/runtime/storm.py --runs 45 --kills 8 --seed 0

A run takes one architecture for a few seconds while a random process is killed (`SIGKILL`), stopped for good
(`SIGSTOP`) or paused (`SIGSTOP`, then `SIGCONT`), from the first process on and also while the run ends. Afterwards:
no stall, no exit code 0 without a checkpoint at the last step, no process left, the environments' own included.

It shares no code with the package, so that a fault there cannot hide itself here.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MARK = "THESPIS_STORM"
SMALL = "--actors 2 --eval-episodes 2 --eval-every 3 --checkpoint-every 2 --report-every 0.5 --stall-timeout 40"
ARCHITECTURES: dict[str, str] = {
    "a2c": "",
    "a3c": "",
    "apex": "--replay.warm-up 200",
    "apex+learners": "--replay.warm-up 200 --learners 2",
    "apex-dpg": "--env storm_envs::continuous --replay.warm-up 200",
    "dqn": "--replay.warm-up 200",
    "es": "",
    "gorila": "--replay.warm-up 200",
    "impala": "",
    "impala+learners": "--learners 3 --actors 3",
    "parameter-server": "",
    "pbt": "",
    "ppo": "",
    "ppo+learners": "--learners 2",
    "qtopt": "--env storm_envs::continuous",
    "r2d2": "--replay.warm-up 10",
    "r2d3": "--replay.warm-up 10",
    "seed": "",
    "seed+learners": "--learners 2",
}
"""Flags of each kind of run. A name is an architecture, up to a plus sign."""
RESTARTS = 3
"""Deaths a process may have before its run ends with an error, as it should."""


@dataclass
class Result:
    """What became of one run."""

    architecture: str
    code: int
    reason: str
    kills: int
    faults: list[str] = field(default_factory=list)
    text: str = ""


def children(parent: int) -> dict[str, int]:
    """The run's processes by name: children of `parent` that were started as one."""
    found: dict[str, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            words = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if int(status[1]) == parent and status[0] != "Z" and "thespis.runtime.child" in words:
            found[words[words.index("thespis.runtime.child") + 1]] = int(entry)
    return found


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


def strike(process: subprocess.Popen[str], random_: random.Random, kills: int, seconds: float) -> int:
    """Kill or stop processes until enough are, or the run is over; return how many."""
    done = 0
    deaths: Counter[str] = Counter()
    moments = sorted(random_.uniform(0.05, seconds) for _ in range(kills))
    started = time.monotonic()
    for moment in moments:
        while time.monotonic() - started < moment and process.poll() is None:
            time.sleep(0.01)
        alive = {name: pid for name, pid in children(process.pid).items() if deaths[name] < RESTARTS}
        if process.poll() is not None or not alive:
            continue
        name = random_.choice(sorted(alive))
        how = random_.choices(("kill", "stop", "pause"), (6, 1, 1))[0]
        deaths[name] += how != "pause"
        done += 1
        try:
            os.kill(alive[name], signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            if how == "pause":
                time.sleep(random_.uniform(0.1, 2.0))
                os.kill(alive[name], signal.SIGCONT)
        except ProcessLookupError:
            done -= 1
    return done


def perform(architecture: str, path: Path, random_: random.Random, kills: int, seconds: float, demos: Path) -> Result:
    mark = f"{MARK}={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "runtime")])
    flags = [*SMALL.split(), "--env", "storm_envs::discrete", *ARCHITECTURES[architecture].split()]
    if architecture == "r2d3":
        flags += ["--demos", str(demos)]
    budget = ["--total-steps", "1000000000"] if architecture == "pbt" else []  # its members share the steps
    command, limit = architecture.partition("+")[0], ["--total-seconds", str(seconds)]
    words = ["train", command, *flags, *budget, *limit, "--run-dir", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "thespis.cli.main", *words],
        env={**os.environ, name: value, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=path.parent,
    )
    done = strike(process, random_, kills, seconds + 4.0)
    try:
        _, text = process.communicate(timeout=seconds + 100.0)
    except subprocess.TimeoutExpired:
        process.kill()
        _, text = process.communicate()
        text += "\nNO END"
    return judge(architecture, process.returncode, done, path, mark, text)


def judge(architecture: str, code: int, kills: int, path: Path, mark: str, text: str) -> Result:
    summary = json.loads((path / "summary.json").read_text()) if (path / "summary.json").exists() else {}
    result = Result(architecture, code, str(summary.get("exit_reason")), kills, text=text)
    if "NO END" in text:
        result.faults.append("no end")
    if result.reason in ("stalled", "deadlock"):
        result.faults.append("stalled")
    saved = [json.loads((point / "meta.json").read_text()) for point in (path / "checkpoints").glob("update-*")]
    last = max((meta["env_steps"] for meta in saved), default=-1)
    if code == 0 and last != summary.get("env_steps"):
        result.faults.append(f"exit 0 with a checkpoint of {last} steps, not {summary.get('env_steps')}")
    if code not in (0, 1) or "Traceback" in text:
        result.faults.append(f"exit code {code}")
    deadline = time.monotonic() + 10.0
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = marked(mark)
    if left:
        result.faults.append(f"left {len(left)} processes")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return result


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
            faults = "; ".join(result.faults) or "ok"
            ended = f"exit {result.code} {result.reason:14}{took:6.1f} s"
            print(f"{architecture:17}{result.kills:3} kills  {ended}  {faults}")
            if result.faults or result.code:
                print("    " + result.text.strip().replace("\n", "\n    "))
            sys.stdout.flush()
    bad = [result for result in results if result.faults]
    print(f"{len(results)} runs, {sum(result.kills for result in results)} kills, {len(bad)} runs with faults")
    print(f"exit codes {dict(Counter(result.code for result in results))}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
