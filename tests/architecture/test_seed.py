"""SEED: its graph, a few updates under every runtime, and equal policies of server and learner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Stage, until
from fakes import Insert, Pull, YieldingContext, run_until

from thespis import train
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.parts.inference import build_inference, build_remote_actor
from thespis.architectures.seed import Config
from thespis.cli.main import main
from thespis.core.config import NetworkConfig, Unrolls
from thespis.core.config_io import to_dict
from thespis.core.context import Identity
from thespis.core.edges import UnrollStorage
from thespis.core.errors import ThespisError
from thespis.core.learners_config import InferenceConfig
from thespis.core.user_code import resolve
from thespis.envs.make import describe_env
from thespis.networks.inputs import as_tensor, tensor_inputs
from thespis.networks.policy_runner import load_weights
from thespis.training.registry import defaults

R2D2: dict[str, Any] = {
    "algorithm": "r2d2", "env": "thespis/Recall-v0", "total_steps": 700, "unroll_length": 5, "sequence_length": 10,
    "burn_in": 3, "batch": 8, "replay": {"warm_up": 20, "samples_per_insert": 4.0, "capacity": 1000},
}  # fmt: skip

PPO: dict[str, Any] = {"algorithm": "ppo", "unroll_length": 16, "double_buffer": True, "epochs": 2}


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("on", "extra"),
    [
        ("simulation", {}),
        ("simulation", {"double_buffer": True, "network": {"lstm": 8}}),
        ("simulation", {"env": "Pendulum-v1", "reward": {"normalize": True}}),
        ("simulation", R2D2),
        ("simulation", PPO),
        ("local", {"double_buffer": True}),
        ("local", R2D2),
    ],
    ids=["vtrace", "double-buffer", "Pendulum", "r2d2", "ppo", "local", "local r2d2"],
)
def test_a_few_updates(on: str, extra: dict[str, Any], stage: Any) -> None:
    run = train("seed", on=on, actors=2, envs_per_actor=2, eval_episodes=0, run_dir=stage.run, quiet=True,
                **{"total_steps": 1500, **extra})  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["env_steps"] >= 700 and result["updates"] > 10
    assert (result["restarts"], set(result["dropped"]) <= {"stale_priorities"}) == (0, True)
    travelled = {name for name, edge in result["edges"].items() if edge["bytes"]} - {"actor.inference.open_session"}
    assert travelled == {"actor.inference.act"}, "weights and unrolls stay in the process"
    if on == "local":
        took = result["processes"]
        assert took["actor"]["rss_mb"] < took["learner"]["rss_mb"], "a process without torch must be smaller"
    if extra is PPO:
        assert result["lag"]["max"] == 0, "a round has one version"
    if extra is R2D2:
        saved = json.loads((next(stage.run.glob("checkpoints/update-*")) / "replay-0.json").read_text())
        assert abs(4.0 * (saved["inserted"] - 20) - saved["sampled"]) <= 2 * 4.0 * 2 * (5 + 13 // 5 + 2)
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


def test_the_simulation_repeats_itself(stage: Any) -> None:
    digests = [
        train("seed", on="simulation", actors=3, envs_per_actor=2, total_steps=800, eval_episodes=0,
              run_dir=stage.path / name, quiet=True).summary["weights_sha256"]
        for name in ("one", "two")
    ]  # fmt: skip
    assert digests[0] == digests[1]


@pytest.mark.timeout(60)
def test_two_groups_hide_the_time_of_one_another(stage: Any) -> None:
    """A step of the environments takes 2 ms, and so does a forward pass for all of them."""
    (stage.path / "costs.yaml").write_text(
        "work:\n  env_step: {base: 0, per_item: 1e-3}\n  inference: {base: 0, per_item: 1e-3}\n  learn: {base: 1e-4}\n"
        "edges:\n  default: {latency: 1e-5}\n"
    )
    speeds = [
        train("seed", on="simulation", actors=1, envs_per_actor=2, total_steps=600, eval_episodes=0,
              inference_batch=1, double_buffer=double, cost_model=stage.path / "costs.yaml",
              run_dir=stage.path / f"{double}", quiet=True).summary["steps_per_second"]
        for double in (False, True)
    ]  # fmt: skip
    assert 450 < speeds[0] < 550, "2 steps in 4 ms"
    assert speeds[1] >= 1.7 * speeds[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lstm", [0, 8], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("double", [False, True], ids=["one group", "two groups"])
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_the_learner_reproduces_what_was_acted(lstm: int, double: bool, on: Any) -> None:
    """Every step records the version that chose it, although weights change within unrolls."""
    algorithm = VTrace(items=Unrolls(unroll_length=7), network=NetworkConfig(hidden=(16,), lstm=lstm))
    cfg = Config(
        env="thespis/Memory-v0", envs_per_actor=4, actors=1, on=on, algorithm=algorithm,
        inference=InferenceConfig(double_buffer=double),
    )  # fmt: skip
    made: Any = algorithm.build_network(describe_env(resolve(cfg.env)), seed=1)
    insert, pull = Insert(20), Pull(made)

    async def act() -> None:
        served = YieldingContext(Identity("inference", 0, run_seed=5))
        server = build_inference(served, cfg, cfg.inference, pull, UnrollStorage(insert=insert))

        class Edge:
            def __init__(self, method: str) -> None:
                self.name, self._method = f"actor.inference.{method}", method

            async def __call__(self, *words: Any) -> Any:
                return await getattr(server, self._method)(*words)

            def sibling(self, method: str) -> Edge:
                return Edge(method)

        actor = build_remote_actor(YieldingContext(Identity("actor", 0, run_seed=5)), cfg, cfg.inference, Edge("act"))
        await run_until(insert.enough, actor, server.run())
        if on == "local":
            await actor._policy._act.close()  # type: ignore[attr-defined]
        await server.close()

    asyncio.run(act())
    mixed = 0
    for unroll in insert.unrolls:
        mixed += len(np.unique(unroll.versions)) > 1
        state = tuple(as_tensor(part) for part in unroll.state)
        inputs = tensor_inputs(unroll.inputs)
        for t in range(7):
            (version,) = set(unroll.versions[t].tolist())
            load_weights(made, pull.given[version])
            step: Any = type(inputs)(*(part[t : t + 1] for part in (
                inputs.obs, inputs.first, inputs.last_action, inputs.last_reward)))  # fmt: skip
            with torch.no_grad():
                output = made.forward(step, state)
                logp, _ = made.distribution.evaluate(output.params[0], as_tensor(unroll.actions[t]))
            state = tuple(part[-1] for part in output.states)
            seen = unroll.valid[t]
            np.testing.assert_allclose(logp.numpy()[seen], unroll.behaviour_logp[t][seen], atol=1e-5)
    assert mixed > len(insert.unrolls) // 2, "some versions must change within unrolls"


def kill_in_turn(stage: Stage, process: Any, names: Sequence[str]) -> None:
    """Kill these processes of a run one after another, each once the run learns again."""

    def updates() -> int:
        lines = (stage.run / "metrics.jsonl").read_text().splitlines() if (stage.run / "metrics.jsonl").exists() else []
        return sum("lag/mean" in line for line in lines)

    until(lambda: process.poll() is not None or updates())
    for times, who in enumerate(names, 1):
        assert process.poll() is None, process.communicate()
        os.kill(json.loads((stage.run / "topology.json").read_text())["pids"][who], signal.SIGKILL)
        until(lambda times=times: (stage.run / "log.txt").read_text().count("restarting in") == times)
        before = updates()
        until(lambda before=before: process.poll() is not None or updates() > before + 3)


@pytest.mark.timeout(90)
def test_a_killed_actor_leaves_no_unroll_of_two_incarnations(stage: Stage) -> None:
    """The learner's network checks every unroll, and fails if one mixes processes."""
    process = stage.start("train", "seed", *stage.small(), "--env", "factories::lifetime", "--network.factory",
                          "factories::watchful", "--unroll-length", 9, "--total-steps", 10**9,
                          "--report-every", 0.1)  # fmt: skip
    kill_in_turn(stage, process, ["actor-0", "actor-0"])
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    summary = json.loads((stage.run / "summary.json").read_text())
    assert (summary["restarts"], summary["dropped"]["partial_unrolls"]) == (2, 2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["local", "ray"])
def test_a_few_updates_over_streams(on: str, stage: Any) -> None:
    run = train("seed", on=on, transport="grpc", actors=2, envs_per_actor=2, double_buffer=True, total_steps=1500,
                eval_episodes=0, run_dir=stage.run, quiet=True)  # fmt: skip
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["updates"] > 10
    assert (result["restarts"], result["dropped"]) == (0, {})
    travelled = {name: edge["calls"] for name, edge in result["edges"].items() if edge["bytes"]}
    assert travelled.keys() == {"actor.inference.open_session", "actor.inference.act"}
    assert travelled["actor.inference.open_session"] == 2, "one stream for each actor, for the whole run"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("transport", ["runtime", "grpc"])
def test_streams_outlive_deaths_on_both_sides(transport: str, stage: Stage) -> None:
    """The stage also checks that the socket is removed, although its first owner was killed."""
    process = stage.start("train", "seed", *stage.small(), "--transport", transport, "--env", "factories::lifetime",
                          "--network.factory", "factories::watchful", "--unroll-length", 9, "--total-steps", 10**9,
                          "--report-every", 0.1, "--checkpoint-every", 0.1)  # fmt: skip
    kill_in_turn(stage, process, ["actor-0", "learner"])
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err


def test_without_grpc_it_says_how_to_install_it(stage: Stage) -> None:
    code = "import sys; sys.modules['grpc'] = None; from thespis.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["train", "seed", "--transport", "grpc", "--run-dir", str(stage.run)]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], env=stage.environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr == "thespis: gRPC is not installed; install it with: pip install 'thespis[grpc]'\n"
    assert not stage.run.exists()


def test_certificates_are_looked_at_before_anything_starts(stage: Stage) -> None:
    flags = "--on ray --transport grpc --tls-cert a.pem --tls-key b.pem --tls-ca c.pem"
    ended = stage.thespis("train", "seed", *stage.small(), *flags.split())
    assert ended.returncode == 2 and ended.stderr.startswith("thespis: --tls-cert a.pem and --tls-key b.pem cannot be")
    assert not stage.run.exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("who", ["actor 0", "learner 0"])
def test_the_simulation_survives_a_death(who: str, stage: Any) -> None:
    run = train("seed", on="simulation", actors=2, envs_per_actor=2, total_steps=4000, eval_episodes=0,
                checkpoint_every=0.02, faults=(f"kill {who} at 0.1",), run_dir=stage.run, quiet=True)  # fmt: skip
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["restarts"] == (1 if who == "actor 0" else 4)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"inference_batch": 9, "actors": 2, "envs_per_actor": 4}, "can never fill with 2 actors of 4 environments"),
        ({"double_buffer": True, "envs_per_actor": 3}, "--double-buffer needs an even --envs-per-actor, and it is 3"),
        ({"algorithm": "ppo", "actors": 2, "backups": 1}, "unknown setting 'backups'"),
        ({"inference_wait": -1.0}, "--inference-wait is -1.0; give at least 0"),
        ({"algorithm": "sarsa"}, "--algorithm is 'sarsa'; choose vtrace, a2c, appo, ppo, r2d2, trpo"),
        ({"algorithm": "r2d2", "entropy_cost": 0.1}, "unknown setting 'entropy_cost'"),
        ({"transport": "grpc", "on": "simulation"}, "--transport grpc needs real sockets"),
        ({"transport": "grpc", "tls_cert": "a.pem"}, "--tls-\\* need --transport grpc and --on ray"),
        ({"on": "ray", "tls_name": "here"}, "--tls-\\* need --transport grpc and --on ray"),
        (
            {"transport": "grpc", "on": "ray", "tls_cert": "a.pem", "tls_key": "b.pem"},
            "give --tls-cert, --tls-key and --tls-ca together",
        ),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ThespisError, match=complaint):
        defaults("seed", None, settings)


def test_every_algorithm_has_settings_of_its_own(capsys: Any) -> None:
    for algorithm, alone in (("vtrace", "impala"), ("r2d2", "r2d2"), ("ppo", "ppo")):
        for env in ("CartPole-v1", "ALE/Pong-v5"):
            in_seed, usual = defaults("seed", env, {"algorithm": algorithm}), defaults(alone, env, {})
            assert in_seed.algorithm == usual.algorithm, "an algorithm has the same settings in both architectures"
            differing = {name for name, value in to_dict(usual).items() if to_dict(in_seed).get(name) != value}
            assert differing <= {"backups", "weights"}, "only ppo waits for rounds, and no actor of seed pulls weights"
    with pytest.raises(SystemExit):
        main(["train", "seed", "--algorithm", "r2d2", "--help"])
    assert "--burn-in" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "seed", "--help"])
    assert "--rho-bar" in capsys.readouterr().out
