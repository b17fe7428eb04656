"""Command lines as people write them: units, short names, suggestions; and help that shows what matters first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thespis.algorithms.base import fitting
from thespis.architectures import impala
from thespis.cli import resume
from thespis.cli.flags import expand
from thespis.cli.help import FIRST, GROUPS, about_defaults, help_text
from thespis.cli.main import main
from thespis.cli.train import settings as parse
from thespis.core.config import Experiment
from thespis.core.config_io import updated
from thespis.core.errors import ThespisError
from thespis.core.quantity import whole
from thespis.core.settings import settings
from thespis.training.registry import architecture, architectures, defaults


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("12", 12), ("1_000_000", 1_000_000), ("1e6", 10**6), ("1E6", 10**6), ("2.5e6", 2_500_000), ("100k", 100_000),
        ("5M", 5_000_000), ("2.5m", 2_500_000), ("1B", 10**9), ("1G", 10**9), ("-3", -3), ("+7", 7),
        ("9" * 26, int("9" * 26)),
    ],
)  # fmt: skip
def test_whole_numbers(words: str, number: int) -> None:
    assert whole(words) == number


@pytest.mark.parametrize("words", ["", "two", "1.5", "1e-3", "1k5", "0x10", "k", "1e999999999", "nan", "9" * 5000])
def test_what_is_no_whole_number(words: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        whole(words)


@pytest.mark.parametrize("words", ["1e6", "1_000_000", "1000k", "1M"])
def test_steps_are_given_as_people_write_them(words: str, monkeypatch: Any) -> None:
    assert parse("impala", ["--total-steps", words]).total_steps == 1_000_000
    assert parse("impala", [f"--total_steps={words}"]).total_steps == 1_000_000
    assert updated(impala.Config(), {"total_steps": words}).total_steps == 1_000_000
    seen: list[Experiment] = []
    monkeypatch.setattr(resume, "allow", lambda path, trust: None)
    monkeypatch.setattr(resume, "outcome", lambda perform: perform())
    monkeypatch.setattr("thespis.training.resume.resume", lambda path, change: seen.append(change(parse("impala", []))))
    resume.run(["run", "--total-steps", words])
    assert [cfg.total_steps for cfg in seen] == [1_000_000]


def test_whole_numbers_elsewhere() -> None:
    cfg = parse("impala", ["--network.hidden", "1k", "64", "--actors", "2e0", "--seed", "3"])
    assert isinstance(cfg, impala.Config)
    assert (cfg.algorithm.network.hidden, cfg.actors, cfg.seed) == ((1000, 64), 2, 3)
    assert updated(impala.Config(), {"total_steps": 1e6}).total_steps == 1_000_000
    # What is text stays text.
    assert parse("impala", ["--env", "1e6"]).env == "1e6"


def test_a_name_that_only_one_flag_ends_in_stands_for_it() -> None:
    words = ["--learning-rate", "0.1", "--lstm=8", "--no-anneal", "--clip", "2", "--seed", "1"]
    assert expand(words, impala.Config()) == [
        "--optimizer.learning-rate", "0.1", "--network.lstm=8", "--optimizer.no-anneal", "--optimizer.clip", "2",
        "--seed", "1",
    ]  # fmt: skip
    with pytest.raises(ThespisError, match="--kind could be .*--reward.kind.*; give one"):
        expand(["--kind", "sgd"], impala.Config())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train impala --learning-rat 1", "no flag --learning-rat (did you mean --optimizer.learning-rate?); see"),
        ("train impala --optimiser.learning-rate 1", "(did you mean --optimizer.learning-rate?); see"),
        ("train impala --learning_rte=1", "(did you mean --optimizer.learning-rate?); see"),
        ("train impala --totalsteps 1", "(did you mean --total-steps?); see thespis train impala --help"),
        ("train impala --xyzzy 1 --qqq", "there is no flag --xyzzy, --qqq; see thespis train impala --help"),
        ("train impala --total-steps ten", "--total-steps takes a whole number, such as 1000000, 1e6, 100k or 5M, not"),
        ("train impala --actors=1.5", "--actors takes a whole number, such as 1000000, 1e6, 100k or 5M, not '1.5'"),
        ("train impala --learning-rate x", "--optimizer.learning-rate takes a number, not 'x'; see thespis train"),
        ("train impala --hidden 64 x", "--network.hidden takes a whole number, such as 1000000, 1e6, 100k or 5M, not"),
        ("show impala --actr 3", "no flag --actr (did you mean --actors?); see thespis train impala --help"),
        ("record nowhere --out a --episodes x", "'x' is not a whole number, such as 1000000, 1e6, 100k or 5M"),
        ("eval nowhere --episode 1 --vidoe x", "no flag --vidoe (did you mean --video?); see thespis eval --help"),
    ],
)
def test_unknown_flags(words: str, told: str, capsys: Any) -> None:
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1, err


# -- help ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", architectures())
def test_help_has_every_setting_once(name: str) -> None:
    plain = architecture(name).Config()
    for algorithm in fitting(type(plain)) if hasattr(plain, "algorithm") else [None]:
        cfg = plain if algorithm is None else updated(plain, {"algorithm": algorithm})
        lines = help_text(f"thespis train {name} [--config FILE]", cfg, "").splitlines()
        flags = [line.split()[0].rstrip(",") for line in lines if line.startswith("  --")]
        paths = {path: f"--{path.replace('_', '-')}" for path, *_ in settings(cfg)}
        paths["env_kwargs"] = "--env-kwargs.NAME"  # one flag for each of them
        assert sorted(flags) == sorted(["--config", *paths.values()])
        assert not [line for line in lines if line.strip().startswith("(default: ") and "  --" in line]


def test_what_matters_is_first_and_the_rest_is_grouped() -> None:
    cfg = impala.Config()
    shown = help_text("thespis train impala [--config FILE]", cfg, about_defaults(cfg, ["CartPole-v1", "ALE/*"], None))
    first, *groups = shown.split("\n\n")[2:]
    assert first.startswith("most used:\n  --env ")
    for flag in ("--total-steps", "--stop-at-return", "--optimizer.learning-rate", "--on ", "--run-dir", "--config"):
        assert flag in first
    assert first.count("\n  -") <= 14
    titles = [group.partition(":")[0] for group in groups]
    assert titles[:5] == ["architecture", "algorithm vtrace", "network", "optimizer", "reward"]
    assert titles[-2:] == [
        "limits",
        "runtime",
    ]
    assert "Presets change some defaults for CartPole-v1, " in shown
    known = {path for path, *_ in settings(Experiment())}
    assert {name for names in GROUPS.values() for name in names} <= known, "a group names a setting that is gone"
    assert {name for name in FIRST if "." not in name} - {"algorithm", "member", "learners"} <= known


def test_help_shows_the_defaults_of_the_run(tmp_path: Path, capsys: Any) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["train", "impala", *words, "--help"])
        assert stop.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    pong = shown("--env", "ALE/Pong-v5")
    assert "Defaults are those for ALE/Pong-v5." in pong and "(default: 50_000_000)" in pong
    assert "(default: 50_000_000)" not in shown()
    file = tmp_path / "config.yaml"
    file.write_text("architecture: impala\ndiscount: 0.875\n")
    assert "Discount factor (paper). (default: 0.875)" in shown("--config", str(file))


def test_help_of_an_architecture_in_a_file(capsys: Any) -> None:
    file = Path(__file__).parents[2] / "examples" / "lockstep.py"
    with pytest.raises(SystemExit):
        main(["train", str(file), "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "--publish-every N Updates between weights that actors can see." in out
    assert "--unroll-length N Steps per unroll: an actor sends them, and takes newer weights, this often." in out


def test_python_m_thespis() -> None:
    ended = subprocess.run([sys.executable, "-m", "thespis", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("thespis ")
    wrong = subprocess.run([sys.executable, "-m", "thespis", "trian"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("thespis: there is no command 'trian'")


def test_short_names_work_to_the_end() -> None:
    assert defaults("impala", None, {"optimizer": {"learning_rate": 0.5}}) == parse(
        "impala", ["--learning-rate", "0.5"]
    )
