"""Compares Thespis with other libraries on the same machine and tasks, one process after the other.

Each library gets a virtual environment in .venv-peers/, with the versions in requirements/. Results are saved in
benchmarks/results/peers.json, and an interrupted benchmark continues from them. The table goes into docs/benchmarks.md.

python -m benchmarks.peers.run                        everything, three runs of each
python -m benchmarks.peers.run --quick                one run of each
python -m benchmarks.peers.run --only appo sb3-ppo    some rows; --again repeats saved measurements
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

VENVS = ROOT / ".venv-peers"
PAGE = ROOT / "docs" / "benchmarks.md"


def python_of(venv: str) -> str:
    return sys.executable if venv == "thespis" else str(VENVS / venv / "bin" / "python")


def set_up(venv: str) -> str | None:
    """Make a virtual environment unless it exists with these versions; return the reason if that fails."""
    if venv == "thespis":
        return None
    requirements = HERE / "requirements" / f"{venv}.txt"
    ready, digest = VENVS / venv / "ready", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if ready.exists() and ready.read_text() == digest:
        return None
    print(f"setting up {venv}", flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(VENVS / venv)],
        [python_of(venv), "-m", "pip", "install", "-q", "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (errors or done.stderr.splitlines() or ["pip failed"])[-1]
    ready.write_text(digest)
    return None


def versions(venv: str) -> str:
    """Return the versions of the compared package and of its main dependencies."""
    wanted = [*PACKAGES[venv], "torch", "gymnasium", "numpy"]
    code = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {wanted!r}))"
    return subprocess.run([python_of(venv), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def once(entry: Entry, task: Task, seed: int) -> dict[str, Any]:
    command = [python_of(entry.venv), str(HERE / f"{entry.driver}.py"), "--env", task.env, "--seed", str(seed)]
    command += ["--algorithm", entry.algorithm, "--settings", json.dumps(entry.settings(task))]
    paths = {"PYTHONPATH": str(ROOT)} if entry.ours else {"PYTHONPATH": ""}
    return measure(command, task.seconds, task.until, paths)


def run_all(entries: list[Entry], tasks: list[Task], repeats: int, kept: dict[str, Any]) -> None:
    """Run all entries in rounds, so that a slow phase of the machine affects all of them."""
    for seed in range(repeats):
        for entry in entries:
            for task in tasks:
                settings = entry.settings(task)
                if settings is None or entry.venv in kept["failed"]:
                    continue
                runs = _runs(kept["results"], entry, task)
                if len(runs) <= seed and not _decided(runs, task):
                    runs.append(once(entry, task, seed))
                    keep("peers", kept)
                    print(f"{entry.name:16} {task.name:6} {json.dumps(runs[-1])}", flush=True)


def _decided(runs: list[dict[str, Any]], task: Task) -> bool:
    """Whether two runs missed the return, so that a third run cannot change the result."""
    return task.until is not None and sum(run.get("seconds_to") is None for run in runs) >= 2


def _runs(results: dict[str, Any], entry: Entry, task: Task) -> list[dict[str, Any]]:
    """Return the runs with these settings; discard runs with other settings."""
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
    parser.add_argument("--again", action="store_true", help="repeat saved measurements")
    parser.add_argument("--no-page", action="store_true", help="do not write docs/benchmarks.md")
    args = parser.parse_args()
    entries = [entry for entry in ENTRIES if entry.name in args.only or not args.only]
    tasks = [task for task in TASKS if task.name in args.tasks or not args.tasks]

    # SIGTERM raises, so that the processes of a run are killed with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = {"results": {}, "versions": {}, **load("peers"), "machine": machine(), "failed": {}}
    if args.again:
        for entry in entries:
            for task in tasks:
                kept["results"].pop(f"{entry.name}/{task.name}", None)
    for venv in dict.fromkeys(entry.venv for entry in entries):
        reason = set_up(venv)
        if reason is None:
            kept["versions"][venv] = versions(venv)
        else:
            kept["failed"][venv] = reason
    run_all(entries, tasks, 1 if args.quick else 3, kept)
    text = page(kept["results"], kept["versions"], kept["failed"], kept["machine"])
    if not args.no_page:
        replace_part(PAGE, "measured", text)
    print(text)


if __name__ == "__main__":
    main()
