"""PPO: its graph, a few updates, on-policy data under all faults, and refused settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thespis import train
from thespis.core.errors import ThespisError

SMALL: dict[str, Any] = {
    "actors": 2, "envs_per_actor": 2, "unroll_length": 16, "epochs": 2, "minibatches": 2, "total_steps": 2000,
    "eval_episodes": 0, "quiet": True,
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("on", ["simulation", "local"])
def test_a_few_updates(on: str, stage: Any) -> None:
    run = train("ppo", on=on, run_dir=stage.run, **{**SMALL, "eval_episodes": 2, "eval_every": 0.0})
    result = run.summary
    assert result["exit_reason"] == "total_steps"
    assert result["env_steps"] >= 2000 and result["updates"] >= 2000 // 64 - 1
    assert result["lag"] == {"mean": 0.0, "max": 0.0}
    assert result["eval_episodes"] == 2 and result["eval_return_mean"] > 0
    assert (result["restarts"], result["dropped"]) == (0, {})
    assert set(result["edges"]) == {
        "learner.queue.sample", "learner.weights.publish", "actor.queue.insert", "actor.weights.next",
        "evaluator.weights.pull",
    }  # fmt: skip
    assert all(torch.isfinite(value).all() for value in run.policy.network.state_dict().values())


def test_one_seed_gives_one_result(stage: Any) -> None:
    settings = {**SMALL, "on": "simulation", "total_steps": 1000}
    digests = [train("ppo", run_dir=stage.path / name, **settings).summary["weights_sha256"] for name in "ab"]
    assert digests[0] == digests[1]
    assert train("ppo", run_dir=stage.path / "c", **settings, seed=1).summary["weights_sha256"] != digests[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("faults", "settings"),
    [
        (("slow actor 0 by 15",), {}),
        (("slow actor 0 by 15",), {"backups": 1}),
        (("kill actor 0 at 0.05", "kill actor 1 at 0.08"), {}),
        (("kill learner 0 at 0.07",), {"checkpoint_every": 0.03}),
        (("kill weights 0 at 0.07", "kill actor 1 at 0.07"), {"checkpoint_every": 0.03}),
        (("lose actor.queue.insert at 0.03", "lose actor.weights.next at 0.06"), {}),
    ],
    ids=["slow", "backup", "actors", "learner", "two at once", "lost replies"],
)
def test_every_step_is_of_the_version_just_published(faults: tuple[str, ...], settings: Any, stage: Any) -> None:
    """No role waits forever, for any role that dies."""
    result = train(
        "ppo", on="simulation", run_dir=stage.run, faults=faults, **{**SMALL, "actors": 3, **settings}
    ).summary
    assert result["exit_reason"] == "total_steps"
    assert result["lag"] == {"mean": 0.0, "max": 0.0}
    assert (result["restarts"] > 0) == any(fault.startswith("kill") for fault in faults)


@pytest.mark.timeout(60)
def test_a_backup_actor_spares_the_wait_for_the_slowest(stage: Any) -> None:
    slow = {**SMALL, "actors": 3, "on": "simulation", "faults": ("slow actor 0 by 30",)}
    together = train("ppo", run_dir=stage.path / "together", **slow).summary
    backed = train("ppo", run_dir=stage.path / "backed", **slow, backups=1).summary
    assert backed["dropped"]["late_unrolls"] > 0 and not together["dropped"]
    assert backed["wall_seconds"] < 0.5 * together["wall_seconds"]


@pytest.mark.timeout(60)
def test_memory_and_normalisation_go_together(stage: Any) -> None:
    """A recurrent network with continuous actions, both normalisations, a value clip and a target KL divergence."""
    run = train("ppo", env="Pendulum-v1", on="simulation", run_dir=stage.run, value_clip=0.2, target_kl=0.02,
                reward={"normalize": True}, network={"lstm": 8, "normalize_observations": True}, **SMALL)  # fmt: skip
    assert run.summary["exit_reason"] == "total_steps" and run.summary["dropped"] == {}
    assert run.policy.network.state_dict()["encoder.torsos.0.normalizer.count"] > 1000


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"backups": 2}, "must wait for at least one"),
        ({"backups": -1}, "--backups is -1; give at least 0"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"clip": 0.0}, "--clip is 0.0; give more than 0"),
        ({"unroll_length": 0}, "--unroll-length is 0"),
        ({"minibatches": 65}, "only 64 steps"),
        ({"minibatches": 5, "network": {"lstm": 8}}, "only 4 environments"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], complaint: str, stage: Any) -> None:
    with pytest.raises(ThespisError, match=complaint):
        train("ppo", on="simulation", run_dir=stage.run, **{**SMALL, **settings})
