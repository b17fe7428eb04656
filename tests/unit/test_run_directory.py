"""A run gets its own directory, or an error that leaves no files; and its metrics on disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from thespis.core.errors import ThespisError
from thespis.runs import directory
from thespis.runs.directory import RunDirectory
from thespis.runs.metrics_writer import MetricsWriter


def test_runs_are_numbered_and_env_ids_make_one_folder(tmp_path: Path) -> None:
    first = RunDirectory.create("impala", "ALE/Pong-v5", 1, root=tmp_path / "runs")
    second = RunDirectory.create("impala", "ALE/Pong-v5", 1, root=tmp_path / "runs")
    other = RunDirectory.create("apex", "package.module:Env-v0", 2, root=tmp_path / "runs")
    assert [run.path.name for run in (first, second, other)] == [
        "impala-ALE-Pong-v5-s1-1",
        "impala-ALE-Pong-v5-s1-2",
        "apex-package.module-Env-v0-s2-1",
    ]
    assert first.checkpoints.is_dir() and first.tensorboard.is_dir()


def test_two_runs_never_share_a_number(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create("dqn", "CartPole-v1", 0, root=tmp_path), range(32)))
    assert len({run.path for run in runs}) == 32


def test_an_empty_directory_is_accepted_and_a_full_one_refused_untouched(tmp_path: Path) -> None:
    assert RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "a" / "b").path == tmp_path / "a" / "b"
    empty = tmp_path / "empty"
    empty.mkdir()
    RunDirectory.create("dqn", "CartPole-v1", 0, path=empty)
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious.txt").write_text("mine")
    with pytest.raises(ThespisError, match="is not empty; give another --run-dir or `thespis resume"):
        RunDirectory.create("dqn", "CartPole-v1", 0, path=full)
    assert [entry.name for entry in full.iterdir()] == ["precious.txt"]


def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ThespisError, match="give another --run-dir") as refusal:
            RunDirectory.create("dqn", "CartPole-v1", 0, path=path)
        assert "\n" not in str(refusal.value)


def test_an_unwritable_place_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def refusing(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.name == "tensorboard":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refusing)
    with pytest.raises(ThespisError, match="Permission denied"):
        RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "new" / "run")
    with pytest.raises(ThespisError, match="Permission denied"):
        RunDirectory.create("dqn", "CartPole-v1", 0, root=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_no_run_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ThespisError, match="holds no run"):
            RunDirectory.open(path)
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert RunDirectory.open(tmp_path).config == tmp_path / "config.yaml"


def test_epochs_rise_by_one_also_in_a_new_process(tmp_path: Path) -> None:
    run = RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "run")
    assert [run.next_epoch("learner"), run.next_epoch("learner"), run.next_epoch("other")] == [0, 1, 0]
    assert RunDirectory(run.path).next_epoch("learner") == 2
    (run.checkpoints / "epoch-learner.json").write_text("{")
    with pytest.raises(ThespisError, match=r"epoch-learner\.json cannot be read"):
        run.next_epoch("learner")


def test_sweep_clears_both_places(tmp_path: Path) -> None:
    run = RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "run")
    (run.path / ".tmp-1").write_text("")
    (run.checkpoints / ".tmp-2").mkdir()
    assert run.sweep() == [".tmp-1", ".tmp-2"]
    assert sorted(entry.name for entry in run.path.iterdir()) == ["checkpoints", "tensorboard"]


def test_sweep_clears_only_the_runs_of_members(tmp_path: Path) -> None:
    run = RunDirectory.create("pbt", "CartPole-v1", 0, path=tmp_path / "run")
    member = RunDirectory.create("impala", "CartPole-v1", 0, path=run.path / "members" / "0-0")
    other = RunDirectory.create("impala", "CartPole-v1", 0, path=run.path / "other")
    for place in (run.path / "members", member.path, member.checkpoints, other.checkpoints):
        (place / ".tmp-1").mkdir()
    assert run.sweep() == [".tmp-1"] * 3
    assert [entry.parent for entry in run.path.rglob(".tmp-*")] == [other.checkpoints]


def test_the_end_of_a_run_leaves_another_directory_alone(tmp_path: Path) -> None:
    run = RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "run")
    run.keep()
    run.path.rename(tmp_path / "moved")
    run.tidy()
    other = RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "run")
    (other.checkpoints / ".tmp-1").mkdir()
    run.tidy()
    assert (other.checkpoints / ".tmp-1").exists()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create("dqn", "CartPole-v1", 0, path=tmp_path / "run")


def scalars(run: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def test_rows_reach_both_files(run: RunDirectory) -> None:
    warnings: list[str] = []
    metrics = MetricsWriter(run, warnings.append)
    metrics.write(100, 1.5, {"train/loss": 0.5, "lag/mean": float("nan")})
    metrics.write(200, 3.0, {"train/loss": 0.25})
    metrics.close()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in run.metrics.read_text().splitlines()]
    assert rows[0] == {"step": 100, "time": 1.5, "train/loss": 0.5, "lag/mean": None}
    assert list(rows[1]) == ["step", "time", "train/loss"]
    assert scalars(run)["train/loss"] == [(100, 0.5), (200, 0.25)]
    assert warnings == []


def test_a_torn_last_line_is_cut_when_resuming(run: RunDirectory) -> None:
    run.metrics.write_text('{"step": 1, "time": 0.1}\n{"step": 2, "ti')
    metrics = MetricsWriter(run, pytest.fail)
    metrics.write(3, 0.3, {})
    metrics.close()
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 3]


def test_rows_after_the_checkpoint_of_a_resumed_run_are_taken_back(run: RunDirectory) -> None:
    """A run was killed at step 400. Its checkpoint, which was evaluated, has 200 steps, so later rows are removed."""
    before = MetricsWriter(run, pytest.fail)
    for step, seconds in ((100, 1.0), (200, 2.0), (300, 3.0), (400, 4.0)):
        before.write(step, seconds, {"a": float(step)})
    before.close()
    with run.metrics.open("a") as file:
        file.write('{"step": 500, "ti')
    after = MetricsWriter(run, pytest.fail)
    assert after.rewind(200, 2.0) == 2
    after.write(250, 2.5, {"a": 0.25})
    after.write(350, 3.5, {"a": 0.35})
    after.close()
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [(row["step"], row["time"]) for row in rows] == [(100, 1.0), (200, 2.0), (250, 2.5), (350, 3.5)]
    assert [step for step, _ in scalars(run)["a"]] == [100, 200, 250, 350]


def test_the_evaluation_of_the_checkpoint_that_is_resumed_stays(run: RunDirectory) -> None:
    before = MetricsWriter(run, pytest.fail)
    before.write(200, 2.0, {"a": 1.0})
    before.write(200, 4.0, {"eval/mean_reward": 9.0})
    before.close()
    after = MetricsWriter(run, pytest.fail)
    assert after.rewind(200, 2.5) == 0
    after.write(300, 3.0, {"a": 2.0})
    after.close()
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [(row["step"], row["time"]) for row in rows] == [(200, 2.0), (200, 2.5), (300, 3.0)]
    assert rows[1]["eval/mean_reward"] == 9.0 and scalars(run)["eval/mean_reward"] == [(200, 9.0)]


def test_a_run_that_starts_over_keeps_no_row(run: RunDirectory) -> None:
    before = MetricsWriter(run, pytest.fail)
    before.write(0, 1.0, {"a": 1.0})
    before.write(9, 2.0, {"a": 2.0})
    before.close()
    after = MetricsWriter(run, pytest.fail)
    assert after.rewind(-1, 0.0) == 2
    after.write(5, 1.5, {"a": 3.0})
    after.close()
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [5]
    assert scalars(run)["a"] == [(5, 3.0)]


def test_a_full_disk_is_reported_once_and_later_rows_are_whole(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    metrics = MetricsWriter(run, warnings.append)
    metrics.write(1, 0.1, {"a": 1.0})
    real: Callable[..., int] = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 10:
            return real(descriptor, data[:10])  # the disk is full in the middle of a record
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    metrics.write(2, 0.2, {"a": 2.0})
    metrics.write(3, 0.3, {"a": 3.0})
    monkeypatch.undo()
    metrics.write(4, 0.4, {"a": 4.0})
    metrics.close()
    assert len(warnings) == 1 and "No space left" in warnings[0]
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 4]
    assert scalars(run)["a"] == [(1, 1.0), (4, 4.0)]


def test_writing_metrics_loads_no_framework(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from thespis.runs.directory import RunDirectory;"
        "from thespis.runs.metrics_writer import MetricsWriter; from thespis.runs import checkpoints, monitor;"
        "from thespis.runs.terminal import panel;"
        "early = 'tensorboard' in sys.modules;"
        "writer = MetricsWriter(RunDirectory.create('a', 'b', 0, path=Path(sys.argv[1])), print);"
        "writer.write(1, 1.0, {'x': 1.0}); writer.close();"
        "sys.exit(early or 'torch' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False).returncode == 0


def test_an_epoch_is_written_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create("impala", "none", 0, tmp_path / "run")
    assert run.next_epoch("learner") == 0

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory, "commit_file", full)
    assert run.next_epoch("learner") == 1
    assert RunDirectory(run.path).next_epoch("learner") == 2


def test_epochs_go_on_in_a_directory_that_is_made_again(tmp_path: Path) -> None:
    run = RunDirectory.create("impala", "none", 0, tmp_path / "run")
    run.config.write_text("seed: 1")
    run.keep()
    assert (run.next_epoch("learner"), run.next_epoch("learner")) == (0, 1)
    assert not run.is_gone()
    shutil.rmtree(run.path)
    assert run.is_gone()
    run.make_again()
    assert not run.is_gone() and run.config.read_text() == "seed: 1"
    assert run.next_epoch("learner") == 2, "actors would refuse weights of an epoch they have seen"
