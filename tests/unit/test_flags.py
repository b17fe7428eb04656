"""Command lines: units, short names and suggestions; help that shows the most used settings first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thespis.algorithms import fitting_algorithms
from thespis.architectures import impala
from thespis.cli import resume
from thespis.cli.flags import expand
from thespis.cli.help import FIRST, GROUPS, about_defaults, help_text
from thespis.cli.main import main
from thespis.cli.train import parse_settings as parse
from thespis.core.config import Experiment
from thespis.core.config_io import with_settings
from thespis.core.errors import ThespisError
from thespis.core.number_parsing import parse_int
from thespis.core.settings import walk_settings
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
    assert parse_int(words) == number


@pytest.mark.parametrize("words", ["", "two", "1.5", "1e-3", "1k5", "0x10", "k", "1e999999999", "nan", "9" * 5000])
def test_what_is_no_whole_number(words: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_int(words)


@pytest.mark.parametrize("words", ["1e6", "1_000_000", "1000k", "1M"])
def test_steps_are_given_as_people_write_them(words: str, monkeypatch: Any) -> None:
    assert parse("impala", ["--total-steps", words]).total_steps == 1_000_000
    assert parse("impala", [f"--total_steps={words}"]).total_steps == 1_000_000
    assert with_settings(impala.Config(), {"total_steps": words}).total_steps == 1_000_000
    seen: list[Experiment] = []
    monkeypatch.setattr(resume, "allow", lambda path, trust: None)
    monkeypatch.setattr(resume, "outcome", lambda perform: perform())
    fake = lambda path, change: seen.append(change(parse("impala", [])))  # noqa: E731
    monkeypatch.setattr("thespis.training.resume.resume_run", fake)
    resume.run(["run", "--total-steps", words])
    assert [cfg.total_steps for cfg in seen] == [1_000_000]


def test_whole_numbers_elsewhere() -> None:
    cfg = parse("impala", ["--network.hidden", "1k", "64", "--actors", "2e0", "--seed", "3"])
    assert isinstance(cfg, impala.Config)
    assert (cfg.algorithm.network.hidden, cfg.actors, cfg.seed) == ((1000, 64), 2, 3)
    assert with_settings(impala.Config(), {"total_steps": 1e6}).total_steps == 1_000_000
    # Text settings stay text.
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
    ("words", "result"),
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
        ("train impala --on marz", "--on takes local, simulation or ray, not 'marz'; see thespis train impala --help"),
        ("train impala --reward.kind=x", "--reward.kind takes none, sign, abs_one or scale, not 'x'; see"),
        ("train impala --total-steps --seed 1", "--total-steps has no value; give --total-steps VALUE; see"),
        ("train impala --seed 1 --env", "--env has no value; give --env VALUE; see thespis train impala --help"),
        ("train impala CartPole-v1", "'CartPole-v1' belongs to no flag; give settings as --NAME VALUE; see"),
        ("train impala --seed 1 2", "'2' after --seed belongs to no flag; give settings as --NAME VALUE; see"),
        ("train impala --anneal yes", "'yes' after --optimizer.anneal belongs to no flag; give settings as"),
        ("train impala --seed 1 -- 2", "'--' after --seed belongs to no flag; give settings as"),
        ("show impala --actr 3", "no flag --actr (did you mean --actors?); see thespis train impala --help"),
        ("record nowhere --out a --episodes x", "'x' is not a whole number, such as 1000000, 1e6, 100k or 5M"),
        ("eval nowhere --episode 1 --vidoe x", "no flag --vidoe (did you mean --video?); see thespis eval --help"),
    ],
)
def test_unknown_flags(words: str, result: str, capsys: Any) -> None:
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert result in err and err.count("\n") == 1, err


# -- help ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", architectures())
def test_help_has_every_setting_once(name: str) -> None:
    plain = architecture(name).Config()
    for algorithm in fitting_algorithms(type(plain)) if hasattr(plain, "algorithm") else [None]:
        cfg = plain if algorithm is None else with_settings(plain, {"algorithm": algorithm})
        lines = help_text(f"thespis train {name} [--config FILE]", cfg, "").splitlines()
        lines = lines[lines.index("", 2) :]  # after the first screen
        flags = [line.split()[0].rstrip(",") for line in lines if line.startswith("  --")]
        paths = {path: f"--{path.replace('_', '-')}" for path, *_ in walk_settings(cfg)}
        paths["env_kwargs"] = "--env-kwargs.NAME"  # one flag per setting
        assert sorted(flags) == sorted(paths.values())
        assert not [line for line in lines if line.strip().startswith("(default: ") and "  --" in line]


def test_what_matters_is_first_and_the_rest_is_grouped() -> None:
    cfg = impala.Config()
    shown = help_text("thespis train impala [--config FILE]", cfg, about_defaults(cfg, ["CartPole-v1", "ALE/*"], None))
    first, _, *groups = shown.split("\n\n")[1:]
    assert first.startswith("most used (in full below):\n  --env ")
    for flag in ("--total-steps", "--stop-at-return", "--optimizer.learning-rate", "--on ", "--run-dir", "--config"):
        assert flag in first
    assert first.count("\n  -") <= 15
    titles = [group.partition(":")[0] for group in groups]
    assert titles[:5] == ["architecture", "algorithm vtrace", "network", "optimizer", "reward"]
    assert titles[-2:] == [
        "limits",
        "runtime",
    ]
    assert "Presets change some defaults for CartPole-v1, " in shown
    known = {path for path, *_ in walk_settings(Experiment())}
    assert {name for names in GROUPS.values() for name in names} <= known, "a group names a setting that does not exist"
    assert {name for name in FIRST if "." not in name} - {"algorithm", "member", "learners"} <= known


@pytest.mark.parametrize("name", architectures())
def test_the_first_screen_has_the_settings_of_a_first_run(name: str, monkeypatch: Any, capsys: Any) -> None:
    """A terminal of 80 columns and 24 lines shows all of them, and the prompt."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", name, "--help"])
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 80 and out.index("", 2) <= 23
    screen = "\n".join(out[:23])
    for flag in ("--env ", "--total-steps N", "--on ", "--run-dir PATH", "eval RUN --video FILE.gif"):
        assert flag in screen
    if name in ("es", "pbt"):  # no gradient optimiser, or settings of a member
        return
    for flag in ("--optimizer.learning-rate X", "--actors N", "--total-seconds X", "--checkpoint-every X", "--seed N"):
        assert flag in screen
    assert main(["--help"]) == 0
    assert "--video FILE.gif records a video" in capsys.readouterr().out


def test_help_shows_the_defaults_of_the_run(tmp_path: Path, capsys: Any) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["train", "impala", *words, "--help"])
        assert stop.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    pong = shown("--env", "ALE/Pong-v5")
    assert "Defaults are for ALE/Pong-v5." in pong and "(default: 50_000_000)" in pong
    assert "(default: 50_000_000)" not in shown()
    file = tmp_path / "config.yaml"
    file.write_text("architecture: impala\ndiscount: 0.875\n")
    assert "Discount factor (gamma) (paper: 0.99). (default: 0.875)" in shown("--config", str(file))


def test_help_of_an_architecture_in_a_file(capsys: Any) -> None:
    file = Path(__file__).parents[2] / "examples" / "lockstep.py"
    with pytest.raises(SystemExit):
        main(["train", str(file), "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "--publish-every N Publish weights every N updates." in out
    assert "--unroll-length N Steps per unroll. An actor sends an unroll, then pulls newer weights." in out


def test_python_m_thespis() -> None:
    ended = subprocess.run([sys.executable, "-m", "thespis", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("thespis ")
    wrong = subprocess.run([sys.executable, "-m", "thespis", "trian"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("thespis: there is no command 'trian'")


def test_short_names_work_to_the_end() -> None:
    assert defaults("impala", None, {"optimizer": {"learning_rate": 0.5}}) == parse(
        "impala", ["--learning-rate", "0.5"]
    )
