"""Thespis beside other libraries, on the same machine and tasks, one process after the other.

Each library gets a virtual environment in .venv-peers/, with the versions in requirements/. What is measured is kept in
benchmarks/results/peers.json: interrupted, the next call goes on. The table goes into docs/benchmarks.md.

python -m benchmarks.peers.run                        everything, three runs of each
python -m benchmarks.peers.run --quick                one run of each
python -m benchmarks.peers.run --only appo sb3-ppo    some rows; --again to measure them anew
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
from typing import Any

from benchmarks.pages import ROOT, keep, load, machine, replace_part
from benchmarks.peers.measure import measure
from benchmarks.peers.page import page
from benchmarks.peers.plan import ENTRIES, HERE, PACKAGES, TASKS, Entry, Task

HOMES = ROOT / ".venv-peers"
PAGE = ROOT / "docs" / "benchmarks.md"


def python_of(home: str) -> str:
    return sys.executable if home == "thespis" else str(HOMES / home / "bin" / "python")


def set_up(home: str) -> str | None:
    """Make a virtual environment unless it is there with these versions. The reason, if that cannot be done."""
    if home == "thespis":
        return None
    requirements = HERE / "requirements" / f"{home}.txt"
    ready, digest = HOMES / home / "ready", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if ready.exists() and ready.read_text() == digest:
        return None
    print(f"setting up {home}", flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(HOMES / home)],
        [python_of(home), "-m", "pip", "install", "-q", "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (errors or done.stderr.splitlines() or ["pip failed"])[-1]
    ready.write_text(digest)
    return None


def versions(home: str) -> str:
    """What is compared, in its version, with what it stands on."""
    wanted = [*PACKAGES[home], "torch", "gymnasium", "numpy"]
    code = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {wanted!r}))"
    return subprocess.run([python_of(home), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def once(entry: Entry, task: Task, seed: int) -> dict[str, Any]:
    command = [python_of(entry.home), str(HERE / f"{entry.driver}.py"), "--env", task.env, "--seed", str(seed)]
    command += ["--algorithm", entry.algorithm, "--settings", json.dumps(entry.settings(task))]
    paths = {"PYTHONPATH": str(ROOT)} if entry.ours else {"PYTHONPATH": ""}
    return measure(command, task.seconds, task.until, paths)


def run_all(entries: list[Entry], tasks: list[Task], repeats: int, kept: dict[str, Any]) -> None:
    """Round by round, so that whatever slows the machine down for a while does so for all."""
    for seed in range(repeats):
        for entry in entries:
            for task in tasks:
                settings = entry.settings(task)
                if settings is None or entry.home in kept["failed"]:
                    continue
                runs = _runs(kept["results"], entry, task)
                if len(runs) <= seed and not _decided(runs, task):
                    runs.append(once(entry, task, seed))
                    keep("peers", kept)
                    print(f"{entry.name:16} {task.name:6} {json.dumps(runs[-1])}", flush=True)


def _decided(runs: list[dict[str, Any]], task: Task) -> bool:
    """Whether most of three runs have not got where they should, so that a third is two minutes for nothing."""
    return task.until is not None and sum(run.get("seconds_to") is None for run in runs) >= 2


def _runs(results: dict[str, Any], entry: Entry, task: Task) -> list[dict[str, Any]]:
    """The runs with these settings; those with others no longer count."""
    key, settings = f"{entry.name}/{task.name}", [entry.algorithm, entry.settings(task), task.seconds]
    if results.get(key, {}).get("settings") != settings:
        results[key] = {"settings": settings, "runs": []}
    runs: list[dict[str, Any]] = results[key]["runs"]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=[entry.name for entry in ENTRIES], metavar="ROW")
    parser.add_argument("--tasks", nargs="*", default=[], choices=[task.name for task in TASKS], metavar="TASK")
    parser.add_argument("--quick", action="store_true", help="one run of each instead of three")
    parser.add_argument("--again", action="store_true", help="also what has been measured")
    parser.add_argument("--no-page", action="store_true", help="leave docs/benchmarks.md as it is")
    args = parser.parse_args()
    entries = [entry for entry in ENTRIES if entry.name in args.only or not args.only]
    tasks = [task for task in TASKS if task.name in args.tasks or not args.tasks]

    # What a run has started is ended with it, however this is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = {"results": {}, "versions": {}, **load("peers"), "machine": machine(), "failed": {}}
    if args.again:
        for entry in entries:
            for task in tasks:
                kept["results"].pop(f"{entry.name}/{task.name}", None)
    for home in dict.fromkeys(entry.home for entry in entries):
        reason = set_up(home)
        if reason is None:
            kept["versions"][home] = versions(home)
        else:
            kept["failed"][home] = reason
    run_all(entries, tasks, 1 if args.quick else 3, kept)
    text = page(kept["results"], kept["versions"], kept["failed"], kept["machine"])
    if not args.no_page:
        replace_part(PAGE, "measured", text)
    print(text)


if __name__ == "__main__":
    main()
