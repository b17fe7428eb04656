"""Resume with other settings: allowed changes, refused changes, and config.yaml afterwards."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from thespis import load, resume, train
from thespis.algorithms import algorithms
from thespis.architectures import apex, es, gorila, impala, pbt, ppo, qtopt, seed
from thespis.cli import main as cli
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.settings import is_inline, names, walk_settings
from thespis.training.registry import architecture, architectures
from thespis.training.resume import differences

ALLOWED: dict[Any, list[str]] = {
    impala: ["optimizer.learning_rate", "optimizer.anneal", "optimizer.clip", "discount", "entropy_cost", "actors",
             "total_steps", "total_seconds", "stop_at_return", "eval_every", "eval_episodes", "checkpoint_every",
             "keep", "report_every", "env_timeout", "on", "reward.scale"],
    ppo: ["epochs", "minibatches", "clip", "target_kl"],
    apex: ["target_period", "publish_every", "epsilon"],
    gorila: ["epsilon_steps", "target_period"],
    es: ["noise", "optimizer.learning_rate"],
    seed: ["inference_batch", "inference_wait", "transport"],
    pbt: ["share", "factor"],
}  # fmt: skip
REFUSED: dict[Any, list[str]] = {
    impala: ["seed", "run_dir", "envs_per_actor", "init_from", "unroll_length", "network.hidden", "network.lstm",
             "network.normalize_observations", "optimizer.kind", "optimizer.momentum", "reward.normalize"],
    apex: ["replay.capacity", "replay.samples_per_insert", "replay.shards", "n_step", "network.dueling"],
    gorila: ["shards", "replay_mode", "outlier_deviations"],
    es: ["pairs", "noise_table", "variant"],
    qtopt: ["network.cem.floor", "loss"],
    pbt: ["population", "member", "tune"],
}  # fmt: skip


class Other:
    """A value that differs from every other value."""


def changed(cfg: Any, path: str) -> Any:
    """Return the config with another value of one setting; no code reads the value."""
    name, _, rest = path.partition(".")
    if name not in {part.name for part in dataclasses.fields(cfg)}:
        nested = {part.name: getattr(cfg, part.name) for part in dataclasses.fields(cfg) if is_inline(part)}
        name, rest = next(key for key, held in nested.items() if name in names(held)), path
    value = changed(getattr(cfg, name), rest) if rest else Other()
    copy = object.__new__(type(cfg))
    for part in dataclasses.fields(cfg):
        object.__setattr__(copy, part.name, value if part.name == name else getattr(cfg, part.name))
    return copy


@pytest.mark.parametrize(
    ("module", "path", "allowed"),
    [(module, path, True) for module, paths in ALLOWED.items() for path in paths]
    + [(module, path, False) for module, paths in REFUSED.items() for path in paths],
    ids=lambda value: getattr(value, "__name__", str(value)).rpartition(".")[2],
)
def test_what_may_change(module: Any, path: str, allowed: bool) -> None:
    cfg = module.Config()
    (change,) = differences(cfg, changed(cfg, path))
    assert change.path == path and change.allowed == allowed


def test_marks_name_settings_that_exist() -> None:
    configs: list[Any] = [architecture(name).Config() for name in architectures()]
    for cfg in (*configs, *algorithms().values()):
        for part in {type(setting.owner) for setting in walk_settings(cfg)}:
            for base in filter(dataclasses.is_dataclass, part.__mro__):
                marks = {*vars(base).get("FIXED", ()), *vars(base).get("MAY_CHANGE", ())} - {"*"}
                assert marks <= {field.name for field in dataclasses.fields(base)}, base


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    some: dict[str, Any] = {"on": "simulation", "actors": 1, "envs_per_actor": 2, "eval_episodes": 0}
    train("impala", run_dir=path, total_steps=100, quiet=True, faults=("slow actor 0 by 1.5",), **some)
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def stored(run: Path, name: str = "config.yaml") -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((run / name).read_text())
    return data


def test_flags_of_train_change_a_resumed_run(run: Path) -> None:
    flags = "--total-steps 2000 --optimizer.learning-rate 0.25 --actors 2 --eval-every 7"
    assert cli.main(["resume", str(run), *flags.split()]) == 0
    new, old = stored(run), stored(run, "config-1.yaml")
    assert (new["total_steps"], new["optimizer"]["learning_rate"], new["actors"], new["eval_every"]) == (
        2000, 0.25, 2, 7.0,
    )  # fmt: skip
    assert old["total_steps"] == 100 and old["actors"] == 1
    assert old["optimizer"]["learning_rate"] != 0.25
    said = (run / "log.txt").read_text()
    assert "changed total_steps 100 -> 2000, actors 1 -> 2, eval_every 30.0 -> 7.0, optimizer.learning_rate" in said
    assert "config-1.yaml has the previous settings" in said
    resume(str(run), total_steps=3000, optimizer={"learning_rate": 0.125}, quiet=True)
    assert stored(run)["optimizer"]["learning_rate"] == 0.125 and stored(run, "config-2.yaml") == new
    assert load(str(run)).summary["env_steps"] >= 3000


def test_without_changes_config_yaml_stays(made: Path, tmp_path: Path) -> None:
    """An interrupted run resumes with the same settings."""
    from thespis.training.launch import launch

    cfg = dataclasses.replace(load(str(made)).config, run_dir=tmp_path / "run", total_steps=2000)
    launch("impala", cfg, quiet=True, until=100)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    resume(str(tmp_path / "run"), quiet=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert not (tmp_path / "run" / "config-1.yaml").exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--seed", "3"], "another --seed: its saved state depends on it"),
        (["--network.hidden", "8"], "another --network.hidden"),
        (["--unroll-length", "3", "--optimizer.kind", "sgd"], "--unroll-length, --optimizer.kind"),
        (["--env", "Acrobot-v1"], "whose observations or actions differ"),
        (["--no-such-flag", "1"], "thespis resume"),
        (["--keep", "0"], "--keep"),
        (["--total-steps", "100"], "give resume a higher --total-steps"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    run: Path, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    before = (run / "config.yaml").read_bytes()
    assert cli.main(["resume", str(run), *flags]) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert why in complaint
    assert (run / "config.yaml").read_bytes() == before and not list(run.glob("config-*.yaml"))


def test_another_environment_of_the_same_spaces_will_do(run: Path) -> None:
    resume(str(run), env="CartPole-v0", total_steps=2000, quiet=True)
    assert stored(run)["env"] == "CartPole-v0"


def test_what_belongs_to_a_runtime_is_left_with_it(run: Path) -> None:
    from thespis.training.resume import updated_config, with_runtime

    cfg = load(str(run)).config
    assert cfg.faults
    local = with_runtime(cfg, "local")
    assert (local.on, local.faults) == ("local", ())
    cluster = dataclasses.replace(local, on="ray", ray_address="auto", actors_per_node=2)
    back = updated_config(cluster, {"on": "simulation", "actors": 3})
    assert (back.ray_address, back.actors_per_node, back.actors) == (None, None, 3)
    assert isinstance(back, Experiment)


def test_the_run_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", "--total-steps", "5"]) == 2
    assert "name the run first" in capsys.readouterr().err
    assert cli.main(["resume"]) == 0 and "usage: thespis resume RUN" in capsys.readouterr().out


def test_settings_that_do_not_exist_are_named(run: Path) -> None:
    with pytest.raises(ThespisError, match="unknown setting 'legs'"):
        resume(str(run), legs=2)
