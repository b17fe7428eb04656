"""The harness that compares other libraries: its input, its saved results and its page. No library runs here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.peers import run as peers
from benchmarks.peers.measure import Run, figures, measure
from benchmarks.peers.page import page
from benchmarks.peers.plan import ENTRIES, HERE, PACKAGES, TASKS

SPEED, SOLVE, PONG = TASKS


def line(steps: int, seconds: float, mean: float | None = None) -> dict[str, Any]:
    return {"steps": steps, "seconds": seconds, "return": mean}


def test_speed_leaves_out_the_warm_up() -> None:
    found = figures([line(0, 1.0), line(10, 2.0), line(1010, 4.0), line(3010, 8.0)], None)
    assert found["steps_per_second"] == pytest.approx(3000 / 6)


def test_the_first_line_at_the_return_counts() -> None:
    lines = [line(100, 1.0), line(200, 2.0, 480.0), line(300, 3.0, 500.0)]
    found = figures(lines, 475.0)
    assert (found["seconds_to"], found["steps_to"]) == (2.0, 200)
    assert figures(lines, 501.0)["seconds_to"] is None
    assert figures([], 475.0)["steps_per_second"] is None


def driver(path: Path, text: str) -> list[str]:
    path.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{text}")
    return [sys.executable, str(path)]


@pytest.mark.timeout(60)
def test_a_driver_is_measured_with_the_processes_it_starts(tmp_path: Path) -> None:
    text = """
import subprocess, time
from lines import Lines, arguments
args, settings = arguments()
subprocess.Popen([sys.executable, "-c", "import time; held = bytes(range(256)) * 400_000; time.sleep(600)"])
lines, steps = Lines(args.until, args.seconds), 0
lines.start()
while not lines.report(steps, [float(steps)] * 100):
    steps += 10
    time.sleep(0.05)
"""
    found = measure(driver(tmp_path / "driver.py", text), seconds=3.0, until=1e9, more={})
    assert "error" not in found
    assert found["steps_per_second"] > 0 and found["seconds_to"] is None and found["return"] > 0
    assert found["peak_mb"] > 90, "the child alone allocates 100 MB"


@pytest.mark.timeout(60)
def test_nothing_of_a_driver_is_left_and_its_last_words_are_the_reason(tmp_path: Path) -> None:
    text = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
raise SystemExit("no such environment")
"""
    run = Run(driver(tmp_path / "driver.py", text), {})
    assert run.wait(50.0) == 1
    assert run.said[-1] == "no such environment"
    assert not run.processes()


@pytest.mark.timeout(60)
def test_another_process_writes_into_a_drivers_line(tmp_path: Path) -> None:
    text = """
good = '{"steps": %d, "seconds": %d, "return": null}'
for number in range(5):
    print(good % (number, number), flush=True)
    print(good % (9, 9) + "[a library] saved", flush=True)
"""
    found = measure(driver(tmp_path / "driver.py", text), seconds=3.0, until=None, more={})
    assert "error" not in found and found["steps_per_second"] == 1.0


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    found = measure(driver(tmp_path / "driver.py", "raise SystemExit('out of luck')"), 1.0, None, {})
    assert found["error"] == "out of luck" and found["steps_per_second"] is None


def kept(**runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {name.replace("__", "/").replace("_", "-"): {"runs": found} for name, found in runs.items()}


def test_ratios_are_to_the_best_of_ours() -> None:
    text = page(
        kept(
            impala__speed=[{"steps_per_second": 100.0}],
            impala_1024__speed=[{"steps_per_second": 300.0}],
            appo__speed=[{"steps_per_second": speed} for speed in (10.0, 30.0, 1000.0)],
            impala__solve=[{"seconds_to": 2.0}],
            appo__solve=[{"seconds_to": 10.0}, {"seconds_to": None}, {"seconds_to": 30.0}],
            rllib__solve=[{"seconds_to": 10.0}, {"seconds_to": None}, {"seconds_to": None}],
        ),
        {},
        {"sb3": "no matching distribution"},
        "a machine",
    )
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("|")}
    appo = [cell.strip() for cell in rows["Sample Factory APPO"].split("|")]
    assert appo[3:7] == ["30", "10.0×", "30.0 (2 of 3 runs)", "15.0×"]
    assert "not reached (1 of 3 runs)" in rows["RLlib IMPALA"]
    assert "sb3 did not install: no matching distribution" in text


def test_what_is_measured_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    asked: list[tuple[str, str, int]] = []

    def once(entry: Any, task: Any, seed: int) -> dict[str, Any]:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append((entry.name, task.name, seed))
        return {"steps_per_second": 1.0}

    monkeypatch.setattr(peers, "once", once)
    some = [entry for entry in ENTRIES if entry.name in ("appo", "sb3-ppo-64")]
    state: dict[str, Any] = {"results": {}, "failed": {}}
    with pytest.raises(KeyboardInterrupt):
        peers.run_all(some, list(TASKS), 1, state)
    before = [*asked]
    asked.clear()
    peers.run_all(some, list(TASKS), 1, pages.load("peers"))
    assert set(before) & set(asked) == set()
    # The row with 64 environments has no Pong.
    assert len(before) + len(asked) == 5
    again = json.loads((tmp_path / "peers.json").read_text())
    assert again["results"]["appo/speed"]["runs"] == [{"steps_per_second": 1.0}]


def test_what_is_not_reached_twice_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "once", lambda entry, task, seed: {"steps_per_second": 1.0, "seconds_to": None})
    state: dict[str, Any] = {"results": {}, "failed": {}}
    peers.run_all([ENTRIES[0]], list(TASKS), 3, state)
    name = ENTRIES[0].name
    assert {key: len(found["runs"]) for key, found in state["results"].items()} == {
        f"{name}/speed": 3,
        f"{name}/solve": 2,
        f"{name}/pong": 3,
    }


def test_runs_with_other_settings_do_not_count() -> None:
    entry = ENTRIES[0]
    results = {f"{entry.name}/speed": {"settings": ["impala", {"envs_per_actor": 1}, 20.0], "runs": [{}]}}
    assert peers._runs(results, entry, SPEED) == []


def test_every_row_has_a_driver_and_pinned_versions() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert (HERE / f"{entry.driver}.py").exists() and entry.venv in PACKAGES
        if not entry.ours:
            pinned = (HERE / "requirements" / f"{entry.venv}.txt").read_text().splitlines()
            assert "torch==2.13.0" in pinned and all("==" in line for line in pinned)


def test_only_the_measured_part_of_a_page_changes(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n")
    for text in ("new", "newer"):
        pages.replace_part(file, "measured", text)
    assert file.read_text() == "before\n<!-- measured -->\n\nnewer\n\n<!-- /measured -->\nafter\n"
    with pytest.raises(SystemExit, match="no part"):
        pages.replace_part(file, "else", "text")
