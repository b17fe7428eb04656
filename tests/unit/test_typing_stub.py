"""The stub of `train` matches the configs, and mypy accepts valid settings and rejects invalid ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from thespis.training.registry import trainable
from thespis.training.typing_stub import STUB, stub

ROOT = STUB.parent.parent
SNIPPET = """\
from pathlib import Path
from thespis import load, train
from thespis.algorithms.vtrace import VTrace
from thespis.core.config import OptimizerConfig, ReplayConfig

run = train("impala", env="CartPole-v1", optimizer={"learning_rate": 1e-3}, network={"hidden": (8, 8)}, rho_bar=2.0)
train("impala", env=lambda: None, optimizer=OptimizerConfig(kind="sgd"), total_steps=None, total_seconds=3, quiet=True)
train("seed", double_buffer=True, rho_bar=1.0, algorithm="vtrace")
train("seed", algorithm="ppo", epochs=2, callbacks=["wandb", print])
train("parameter-server", mode="sync", algorithm="dqn", replay={"capacity": 10}, run_dir="here", track_info=["x"])
train("apex", epsilon_exponent=3.0, n_step=2, replay=ReplayConfig(capacity=10))
train("r2d2", sequence_length=20, replay={"shards": 2}, algorithm="r2d2")
train("apex-dpg", noise=0.3, publish_every=1)
train("apex", algorithm="r2d2", burn_in=4)
train("impala", algorithm=VTrace(discount=0.9), unroll_length=8)
train("r2d2", algorithm=VTrace(discount=0.9), unroll_length=8)
train(Path("mine.py"), anything=1)
name: str = input()
train(name, env="CartPole-v1", seed=1)
load(Path("here")).evaluate(episodes=3)
train("impala", unroll_lenght=8)  # wrong
train("impala", optimizer={"learning_rat": 1e-3})  # wrong
train("impala", optimizer={"learning_rate": "high"})  # wrong
train("impala", network={"torso": "transformer"})  # wrong
train("impala", seed="one")  # wrong
train("impala", epochs=2)  # wrong
train("ppo", rho_bar=1.0)  # wrong
train("impala", algorithm="ppo")  # wrong
train("seed", sequence_length=4)  # wrong
train("parameter-server", replay={"capacity": 10})  # wrong
train("dqn", epsilon_exponent=3.0)  # wrong
train("r2d2", noise=0.3)  # wrong
train("apex-dpg", burn_in=4)  # wrong
train("seed", algorithm="ppo", rho_bar=1.0)  # wrong
train("es", optimizer={"momentum": 0.9})  # wrong
train(name, rho_bar=1.0)  # wrong
train("impala", track_info="distance")  # wrong
"""


def test_the_stub_is_what_the_configs_say() -> None:
    made = stub()
    assert STUB.read_text() == made, "a config changed; run `python -m thespis.training.typing_stub`"
    for name in trainable():
        assert f'Literal["{name}"]' in made


def test_mypy_knows_the_settings_of_each_architecture(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    # mypy skips torch and Gymnasium, which would take most of a minute and do not matter here.
    files = (
        "__init__.py",
        "_train.pyi",
        "core/config.py",
        "training/trained_run.py",
        "algorithms/es.py",
        "algorithms/base.py",
        "algorithms/vtrace.py",
    )
    known = [ROOT / "thespis" / name for name in files]
    flags = ["--strict", "--follow-imports=skip", "--ignore-missing-imports", "--no-error-summary"]
    line = [sys.executable, "-m", "mypy", *flags, "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "snippet.py")]
    ended = subprocess.run(
        [*line, *map(str, known)], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(ROOT)}
    )
    errors = {int(number) for number in re.findall(r"snippet\.py:(\d+): error", ended.stdout)}
    wrong = {number for number, text in enumerate(SNIPPET.splitlines(), 1) if text.endswith("# wrong")}
    assert errors == wrong, ended.stdout + ended.stderr


def test_the_stub_costs_nothing_at_run_time() -> None:
    code = "import sys, thespis; assert 'train' in dir(thespis); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [
        name for name in ("thespis.training.launch", "thespis._train", "torch", "gymnasium") if f"'{name}'" in loaded
    ]
