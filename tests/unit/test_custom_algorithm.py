"""An algorithm in a user's file: flags and help, resume and evaluation of its run, and trust in its code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from thespis import TrainedRun, load, resume, train
from thespis.cli.main import main
from thespis.core.errors import ThespisError
from thespis.runs.trust import Untrusted

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_algorithm.py"
SMALL: dict[str, Any] = {
    "actors": 1, "envs_per_actor": 2, "eval_episodes": 0, "total_steps": 200, "quiet": True, "on": "simulation"
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example at an untrusted path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Path(shutil.copy(EXAMPLE, tmp_path / "mine.py"))


def trained(file: Path, architecture: str = "impala", **settings: Any) -> TrainedRun:
    place = file.parent / "run"
    return train(architecture, algorithm=f"{file}::MyAlgorithm", run_dir=place, **(SMALL | settings))


def test_its_settings_are_flags_with_help(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "impala", "--algorithm", f"{file}::MyAlgorithm", "--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    for flag in ("--ratio-clip", "--return-lambda", "--network.blocks", "--network.hidden", "--unroll-length"):
        assert flag in said
    assert "--rho-bar" not in said, "a setting of V-trace"
    assert "Residual blocks between the torso and the heads" in said


def test_its_run_is_resumed_and_evaluated(file: Path) -> None:
    run = trained(file, ratio_clip=2.0, network={"blocks": 2})
    written = yaml.safe_load((run.path / "config.yaml").read_text())
    assert written["algorithm"] == f"{file}::MyAlgorithm"
    assert (written["ratio_clip"], written["network"]["blocks"]) == (2.0, 2)
    assert len(load(run.path).policy.network.blocks) == 2
    assert main(["eval", str(run.path), "--episodes", "1"]) == 0
    assert resume(run.path, total_steps=400, ratio_clip=1.5, quiet=True).summary["env_steps"] >= 400
    assert load(run.path).config.learned.ratio_clip == 1.5
    with pytest.raises(ThespisError, match=r"network\.blocks"):
        resume(run.path, total_steps=600, network={"blocks": 3}, quiet=True)


@pytest.mark.parametrize("architecture", ["a3c", "seed", "parameter-server"])
def test_other_architectures_that_carry_unrolls_take_it(file: Path, architecture: str) -> None:
    assert trained(file, architecture).summary["updates"] > 0


def test_an_architecture_that_cannot_carry_its_items_refuses_it(file: Path) -> None:
    with pytest.raises(ThespisError, match="learns from unrolls, and this architecture carries transitions"):
        trained(file, "dqn")


def test_its_code_is_not_run_for_another_user(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(file)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "another"))
    with pytest.raises(Untrusted, match=r"algorithm: .*mine\.py::MyAlgorithm"):
        _ = load(run.path).config
    with pytest.raises(Untrusted, match=r"algorithm: .*mine\.py::MyAlgorithm"):
        resume(run.path, total_steps=400)
    assert load(run.path, trust=True).config.learned.name == f"{file}::MyAlgorithm"


def test_what_is_no_algorithm_is_refused(file: Path) -> None:
    with pytest.raises(ThespisError, match=r"MyNetwork.*extends thespis\.Algorithm"):
        train("impala", algorithm=f"{file}::MyNetwork", **SMALL)
