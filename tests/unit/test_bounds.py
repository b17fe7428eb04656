"""Every number of every config has a range. Other values are refused in one line that names the flag."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

from thespis import train
from thespis.algorithms import fitting_algorithms
from thespis.cli.main import main
from thespis.core.bounds import Bounds, Count, Fraction, Positive, check_numbers, numbers_of
from thespis.core.config import Experiment
from thespis.core.config_io import with_settings
from thespis.core.errors import ThespisError
from thespis.population.search_space import priors
from thespis.training import registry
from thespis.training.presets import Preset
from thespis.training.registry import architecture, architectures, defaults

ODD: dict[str, float] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "negative": -1.0, "zero": 0.0}
ALLOWED: dict[str, str] = {
    # Returns, rewards and differential entropies may have either sign.
    "stop_at_return ars.survival_bonus target_entropy": "negative zero",
    # An infinite threshold disables it. With c_bar 0, corrections reach one step.
    "huber rho_bar pg_rho_bar": "inf",
    "c_bar": "zero inf",
    # 0 disables the setting, selects a default, or is the end of a range.
    "seed eval_every eval_episodes backups forced_lag max_staleness max_delay burn_in offline_updates": "zero",
    "network.lstm inference_batch inference_wait entropy_cost value_cost value_clip epsilon_exponent": "zero",
    "optimizer.learning_rate optimizer.clip optimizer.weight_decay ars.step_size cap_factor repeat_after": "zero",
    "optimizer.decay optimizer.momentum optimizer.beta2 epsilon epsilon_start epsilon_end epsilon_steps": "zero",
    "discount trace_decay gae_lambda eta resample demo_ratio qtopt:decay qtopt:noise": "zero",
    "replay.error replay.bytes replay.priority_exponent replay.importance_exponent": "zero",
    "replay.max_times_sampled damping gradients_warm_up": "zero",
}
"""The odd values that the settings of each row accept."""
TOGETHER = (
    "--network.lstm must stay 0",
    "lower --network.cem.elites",
    "give --network.critic-hidden at least two layers",
    "give --network.hidden at least two layers",
    "samples uniformly",
    "lower it or raise --noise",
    "some steps would never be trained",
)


def configs() -> Iterator[tuple[str, str | None]]:
    """Return every architecture with each of its algorithms, by name."""
    for name in architectures():
        config = architecture(name).Config
        yield from (
            (name, algorithm)
            for algorithm in (fitting_algorithms(config) if hasattr(config(), "algorithm") else [None])
        )


def nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def allowed(name: str, path: str) -> set[str]:
    known = {each: set(odd.split()) for row, odd in ALLOWED.items() for each in row.split()}
    return known.get(path) or known.get(f"{name}:{path}") or set()


@pytest.mark.parametrize(("name", "algorithm"), list(configs()))
def test_every_number_has_a_range(name: str, algorithm: str | None) -> None:
    chosen = {"algorithm": algorithm} if algorithm else {}
    found = dict(numbers_of(defaults(name, None, chosen)))
    assert len(found) > 20
    for path, number in found.items():
        whole = number.kind is int
        tried = {odd: int(value) if whole and math.isfinite(value) else value for odd, value in ODD.items()}
        if whole:
            tried["huge"] = 10**30
        expected = allowed(name, path)
        assert {odd for odd, value in tried.items() if number.refusal(value) is None} == expected, path
        for odd, value in tried.items():
            if odd in expected or (whole and isinstance(value, float)):
                continue  # neither the command line nor YAML can give inf as an integer
            data = nested(path, [value] if path.endswith("hidden") else value)
            with pytest.raises(ThespisError) as refused:
                defaults(name, None, {**data, **chosen})
            # Nested configs are refused earlier, by their checks of several settings together.
            flag = path.replace("_", "-")
            known = (f"--{flag} is ", *TOGETHER)
            assert any(words in str(refused.value) for words in known) and "\n" not in str(refused.value), (path, odd)


@pytest.mark.parametrize("flag", ["optimizer.learning-rate", "discount", "rho-bar", "reward.scale", "total-seconds"])
def test_nan_is_refused_before_anything_starts(flag: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "impala", "--on", "simulation", f"--{flag}", "nan"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"thespis: --{flag} is nan; give a ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_config_file_and_python_are_checked_too(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("architecture: impala\non: simulation\noptimizer: {learning_rate: .nan}\n")
    assert main(["train", "impala", "--config", str(file)]) == 2
    assert "--optimizer.learning-rate is nan; give a finite number of at least 0" in capsys.readouterr().err
    with pytest.raises(ThespisError, match="--optimizer.learning-rate is nan"):
        train("impala", optimizer={"learning_rate": math.nan}, run_dir=tmp_path / "run")
    with pytest.raises(ThespisError, match="--seed is a number beyond"):
        train("impala", seed=10**60, run_dir=tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("preset", [{"discount": math.inf}, {"optimizer": {"epsilon": 0.0}}])
def test_presets_are_checked_too(preset: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "load_presets", lambda *names: [Preset("Odd-v0", "a test", preset)])
    with pytest.raises(ThespisError, match=r"^--(discount|optimizer.epsilon) is "):
        defaults("impala", "Odd-v0", {})


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0


@dataclass(frozen=True)
class Ranged(Experiment):
    share: Fraction = 0.5
    sizes: tuple[Count, ...] = (1, 2)
    limit: Positive | None = None
    most: Annotated[int, Bounds(least=2, most=5)] = 3
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Redeclared(Ranged):
    share: float = 0.25

    def __post_init__(self) -> None:
        """A config without checks of its own."""


def test_a_range_outlives_a_new_default() -> None:
    assert dict(numbers_of(Redeclared()))["share"].bounds == Bounds(least=0, most=1)
    with pytest.raises(ThespisError, match="--share is 2.0; give at least 0 and at most 1"):
        check_numbers(Redeclared(share=2.0))


@pytest.mark.parametrize(
    ("data", "result"),
    [
        ({"sizes": [3, 0]}, "--sizes is 0; give at least 1"),
        ({"limit": -1}, "--limit is -1.0; give more than 0"),
        ({"most": 6}, "--most is 6; give at least 2 and at most 5"),
        ({"inner": {"rate": math.inf}}, "--inner.rate is inf; give a finite number"),
    ],
)
def test_what_is_said(data: dict[str, Any], result: str) -> None:
    assert with_settings(Ranged(), {}) == Ranged()
    with pytest.raises(ThespisError) as refused:
        with_settings(Ranged(), data)
    assert str(refused.value) == result


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("discount uniform 0.5 1.5", "--tune discount: 1.5 is out of range; give at least 0 and at most 1"),
        ("unroll_length choice 4 0", "--tune unroll_length: 0 is out of range; give at least 1"),
        ("entropy_cost uniform 0 inf", "--tune entropy_cost: 'inf' is not a finite number"),
    ],
)
def test_a_population_draws_only_what_its_members_take(words: str, result: str) -> None:
    with pytest.raises(ThespisError) as refused:
        priors(words.split(), architecture("impala").Config(), "--tune")
    assert str(refused.value) == result
