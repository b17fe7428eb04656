"""The command line: fast help, one line per user error, and the output of each command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from thespis import TrainedRun, train
from thespis.cli.main import main
from thespis.core.errors import ThespisWarning

pytestmark = pytest.mark.timeout(120)
SMALL = ["--on", "simulation", "--actors", "1", "--envs-per-actor", "2", "--eval-episodes", "0", "--total-steps", "800"]


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the path, because `main` adds the working directory to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A small finished run with several checkpoints."""
    return train(
        "impala", on="simulation", actors=1, envs_per_actor=2, eval_episodes=0, total_steps=2000,
        checkpoint_every=0.05, keep=9, run_dir=tmp_path_factory.mktemp("cli") / "run", quiet=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ["torch", "numpy", "gymnasium", "tyro"]),
        (["train", "--help"], ["torch", "numpy"]),
        (["train", "impala", "--help"], ["torch", "gymnasium"]),
        (["list"], ["torch", "gymnasium"]),
        (["compare", "--help"], ["torch", "numpy", "gymnasium", "matplotlib"]),
        (["plot", "--help"], ["torch", "numpy", "gymnasium", "matplotlib"]),
        (["show", "impala"], ["torch"]),
    ],
)
def test_help_does_not_wait_for_imports(words: list[str], absent: list[str]) -> None:
    """The test checks imports, because seconds would depend on the machine."""
    code = (
        f"import sys\nfrom thespis.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', sorted({set(absent)!r} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "LOADED []"
    assert len(ended.stdout.splitlines()) > 1


@pytest.mark.parametrize(("given", "found"), [({}, "1 PASSIVE"), ({"OPENBLAS_NUM_THREADS": "2"}, "2 PASSIVE")])
def test_threads_do_not_spin_beside_a_simulated_run(given: dict[str, str], found: str) -> None:
    code = (
        "import os\nfrom thespis.cli.main import main\nmain(['list'])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], os.environ['OMP_WAIT_POLICY'])"
    )
    unset = {
        name: value for name, value in os.environ.items() if name not in ("OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY")
    }
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=unset | given)
    assert ended.stdout.splitlines()[-1] == found


def test_learning_does_not_wait_for_imports(tmp_path: Path) -> None:
    """torch may import sympy at the first backward pass, a third of a second in each of a hundred workers."""
    code = (
        "import sys\nfrom thespis import train\n"
        "settings = dict(env='CartPole-v1', on='simulation', total_steps=2_000, eval_episodes=0, quiet=True)\n"
        "for name in ('a3c', 'ppo', 'dqn'):\n"
        "    assert train(name, run_dir=name, **settings).summary['updates']\n"
        "print('LOADED', sorted({'sympy', 'torch._dynamo'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.splitlines()[-1] == "LOADED []"


MISTAKES: dict[str, tuple[list[str], str]] = {
    "command": (["trian"], "there is no command 'trian'; the commands are train, resume, eval, record, compare, "),
    "architecture": (["train", "impalla"], "unknown architecture 'impalla'; choose from a2c, "),
    "no architecture": (["train", "--env", "CartPole-v1"], "name the architecture first"),
    "environment": (["train", "impala", "--env", "CartPoel-v1"], "unknown environment 'CartPoel-v1'"),
    "file": (
        ["train", "impala", "--env", "env.py"],
        "'env.py' is a file; name the function or class in it, as env.py::make_env",
    ),
    "module": (["train", "impala", "--env", "nowhere::make"], "'nowhere::make' cannot be loaded"),
    "action space": (["train", "impala", "--env", "spaces::odd_actions"], "action"),
    "batch": (["train", "impala", "--batch-unrolls", "9"], "a batch of 9 never fits a queue of capacity"),
    "actors": (["train", "impala", "--actors", "0"], "--actors is 0; give at least 1"),
    "number": (["train", "impala", "--actors", "two"], "--actors"),
    "flag": (["train", "impala", "--actor", "2", "--nonsense"], "see thespis train impala --help"),
    "choice": (["train", "impala", "--on", "mars"], "--on takes local, simulation or ray, not 'mars'"),
    "config": (["train", "impala", "--config", "none.yaml"], "config none.yaml cannot be read"),
    "fault": (["train", "impala", "--on", "simulation", "--faults", "hit actor"], "is not understood"),
    "fault elsewhere": (["train", "impala", "--faults", "kill actor 0 at 1"], "need the simulation"),
    "no edge": (["train", "impala", "--on", "simulation", "--faults", "lose a.b.c at 1"], "there is no edge 'a.b.c'"),
    "costs": (["train", "impala", "--on", "simulation", "--cost-model", "none"], "cost model none cannot be read"),
    "torso": (["train", "impala", "--on", "simulation", "--network.torso", "nature"], "torso 'nature' reads images"),
    "resume": (["resume", "nowhere"], "nowhere holds no run"),
    "eval": (["eval", "nowhere"], "nowhere holds no run"),
    "video": (["eval", "nowhere", "--video", "a.txt"], "give a name that ends in .gif or .mp4"),
    "show": (["show"], "the following arguments are required: arch; see thespis show --help"),
    "show what": (["show", "impala", "--actor", "3", "--nonsense"], "--nonsense"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, stage: Any, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    words, result = MISTAKES[mistake]
    here = stage.path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    sys.path.insert(0, str(Path(__file__).parent))
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert err.count("\n") == 1 and err.startswith("thespis: "), err
    assert result in err
    assert "--- " not in err, "a part of the error box is left"
    assert "Traceback" not in out
    assert not list(here.iterdir()), "files were left behind"


@pytest.mark.parametrize("where", ["file/run", "/proc/run", "full"])
def test_a_run_directory_that_will_not_do(where: str, stage: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(stage.path)
    (stage.path / "file").write_text("in the way")
    (stage.path / "full").mkdir()
    (stage.path / "full" / "thesis.txt").write_text("precious")
    before = sorted(stage.path.rglob("*"))
    assert main(["train", "impala", *SMALL, "--run-dir", where]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "give another --run-dir" in err
    assert sorted(stage.path.rglob("*")) == before


def test_a_mistake_found_by_a_process_is_one_line_too(stage: Any) -> None:
    stage.run.mkdir()
    ended = stage.train("--network.torso", "nature")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and "torso 'nature' reads images" in ended.stderr
    assert not list(stage.run.iterdir()), "only files from before remain"


def test_the_saved_config_gives_the_same_run(run: TrainedRun, stage: Any) -> None:
    words = ["train", "impala", "--config", str(run.path / "config.yaml"), "--run-dir", str(stage.run)]
    assert main(words) == 0
    again = TrainedRun(stage.run).summary
    assert again == {**run.summary, **{name: again[name] for name in ("startup_seconds", "real_seconds")}}


def test_flags_override_the_config_file(run: TrainedRun, stage: Any) -> None:
    words = ["train", "impala", "--config", str(run.path / "config.yaml"), "--run-dir", str(stage.run)]
    assert main([*words, "--seed", "7", "--total-steps", "500"]) == 0
    assert TrainedRun(stage.run).summary["seed"] == 7
    assert TrainedRun(stage.run).summary["env_steps"] < 2000


def copied(run: TrainedRun, stage: Any) -> Path:
    shutil.copytree(run.path, stage.run)
    return Path(stage.run)


def damaged(path: Path) -> tuple[Path, Path]:
    """Flip a bit in the newest checkpoint of a run; return the one before it, and the newest."""
    *_, before, last = sorted((path / "checkpoints").glob("update-*"))
    file = last / "learner-0.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return before, last


def test_a_policy_of_an_earlier_checkpoint_is_not_taken_for_the_last(run: TrainedRun, stage: Any, capfd: Any) -> None:
    path = copied(run, stage)
    before, last = damaged(path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["eval", str(path), "--episodes", "1"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"thespis: using {before.name}, because {last.name}: ")
    assert "does not match its SHA-256" in line
    with pytest.warns(ThespisWarning, match=f"using {before.name}"):
        assert TrainedRun(path).policy.checkpoint == before
    shutil.rmtree(before)
    for older in (path / "checkpoints").glob("update-*"):
        if older != last:
            shutil.rmtree(older)
    assert main(["eval", str(path), "--episodes", "1"]) == 2
    err = capfd.readouterr().err
    assert f"has no valid checkpoint ({last.name}: " in err and "does not match its SHA-256" in err


def test_resume_takes_the_newest_valid_checkpoint_and_says_so(run: TrainedRun, stage: Any, capfd: Any) -> None:
    path = copied(run, stage)
    before, last = damaged(path)
    assert main(["resume", str(path), "--total-steps", "3000"]) == 0
    err = capfd.readouterr().err
    assert f"skipped {last.name}: " in err and "does not match its SHA-256" in err
    assert f"resuming {before.name}, the newest valid checkpoint" in err
    assert TrainedRun(path).summary["env_steps"] >= 3000


def test_resume_of_a_run_that_has_ended(run: TrainedRun, stage: Any, capfd: Any) -> None:
    path = copied(run, stage)
    before = (path / "summary.json").read_bytes()
    assert main(["resume", str(path)]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "give resume a higher --total-steps" in err
    assert (path / "summary.json").read_bytes() == before


def test_resume_when_every_checkpoint_is_damaged(run: TrainedRun, stage: Any, capfd: Any) -> None:
    path = copied(run, stage)
    for manifest in path.glob("checkpoints/update-*/manifest.json"):
        manifest.unlink()
    assert main(["resume", str(path), "--total-steps", "3000"]) == 2
    assert "is damaged; start a new run" in capfd.readouterr().err.splitlines()[-1]


def test_eval_plays_episodes(run: TrainedRun, stage: Any, capsys: Any) -> None:
    video = stage.path / "episode.gif"
    assert main(["eval", str(run.path), "--episodes", "2", "--seed", "5", "--video", str(video)]) == 0
    first = capsys.readouterr().out.splitlines()
    assert first[0].startswith("episode 1: return ") and first[1].startswith("episode 2: return ")
    assert first[2].startswith("mean return ") and ", greedy (update-" in first[2]
    assert video.read_bytes().startswith(b"GIF8")
    plain = ["eval", str(run.path), "--episodes", "3", "--seed", "5"]
    assert main(plain) == main(plain) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == lines[4:], "the same seed plays the same episodes"
    best = ["eval", str(run.path), "--episodes", "1", "--checkpoint", "best", "--sample"]
    assert main(best) == 0


def test_show_takes_the_settings_that_train_takes(capsys: Any) -> None:
    assert main(["show", "apex", "--replay.shards", "2", "--actors", "5"]) == 0
    shown = capsys.readouterr().out
    assert "actor        x5" in shown and "replay       x2" in shown


def test_list_names_every_architecture(capsys: Any) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("impala             IMPALA (Espeholt et al., 2018") for line in lines)
    assert any(line.startswith("dqn                DQN (Mnih et al., 2015") for line in lines)


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m thespis.cli.main show impala | true"
    ended = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert ended.stderr == ""
