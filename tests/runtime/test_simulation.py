"""The simulation: one seed gives one result, a resumed run equals an uninterrupted one, and faults take effect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from thespis import TrainedRun, train
from thespis.core.errors import ThespisError
from thespis.runs.checkpoints import read_meta
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import RunFailed

pytestmark = pytest.mark.timeout(120)
SMALL = {"on": "simulation", "actors": 2, "envs_per_actor": 4, "total_steps": 6000, "eval_episodes": 0}
STATEFUL = {
    "network": {"hidden": [16], "lstm": 8, "normalize_observations": True},
    "reward": {"kind": "none", "normalize": True},
    "optimizer": {"kind": "rmsprop", "anneal": True},
    "eval_episodes": 4,
    "eval_every": 0.06,
}

OF_THE_PROCESS = ("startup_seconds", "real_seconds", "resumed_at_steps")


def simulate(path: Path, **settings: Any) -> TrainedRun:
    return train("impala", quiet=True, run_dir=path, **{**SMALL, **settings})


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").glob("update-*"))


def result(run: TrainedRun) -> dict[str, Any]:
    """Return the summary without real times, and without the fields of a resumed run."""
    return {name: value for name, value in run.summary.items() if name not in OF_THE_PROCESS}


def rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_the_same_seed_gives_the_same_bytes(stage: Any) -> None:
    one, two, other = (simulate(stage.path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    assert one.summary["weights_sha256"]
    assert result(one) == result(two)
    assert (one.path / "metrics.jsonl").read_bytes() == (two.path / "metrics.jsonl").read_bytes()
    assert one.summary["weights_sha256"] != other.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("step", "cores", "speed"),
    [("base: 1e-3", "", 4000), ("base: 1e-3", "cores: 2", 2000), ("base: 1e-3", "cores: 1", 1000),
     ("base: 0, wait: 1e-3", "cores: 1", 4000)],
    ids=["a core each", "two cores", "one core", "one core, but the actors only wait"],
)  # fmt: skip
def test_actors_that_share_cores_are_slower(step: str, cores: str, speed: int, stage: Any) -> None:
    """Measure the speed of four actors whose steps take 1 ms."""
    (stage.path / "costs.yaml").write_text(
        f"work: {{env_step: {{{step}}}, inference: {{base: 0}}, learn: {{base: 0}}}}\n"
        f"edges: {{default: {{latency: 1e-9, bandwidth: 1e15}}}}\n{cores}\n"
    )
    run = simulate(
        stage.run, actors=4, envs_per_actor=1, total_steps=2000, cost_model=stage.path / "costs.yaml", batch_unrolls=1
    )
    assert run.summary["steps_per_second"] == pytest.approx(speed, rel=0.1)


def test_messages_take_cores_too(stage: Any) -> None:
    """An unroll takes 10 ms, and each end of its two messages takes 1 ms."""
    speeds = []
    for cpu in (0.0, 1e-3):
        (stage.path / "costs.yaml").write_text(
            "cores: 1\nwork: {env_step: {base: 1e-3}, inference: {base: 0}, learn: {base: 0}}\n"
            f"edges: {{default: {{latency: 1e-9, bandwidth: 1e15}}, actor.queue.insert: {{cpu: {cpu}}}}}\n"
        )
        run = simulate(
            stage.path / f"{cpu}", actors=1, envs_per_actor=1, unroll_length=10, batch_unrolls=1, total_steps=1000,
            cost_model=stage.path / "costs.yaml",
        )  # fmt: skip
        speeds.append(run.summary["steps_per_second"])
    assert speeds[1] / speeds[0] == pytest.approx(10 / 14, rel=0.02)


@pytest.mark.parametrize(
    ("start", "least", "most"), [("0", 0.25, 0.31), ("0.5", 0.75, 0.81), ("[0.5, 1.5]", 0.85, 1.75)]
)
def test_processes_take_their_time_to_come_up(start: str, least: float, most: float, stage: Any) -> None:
    """Four actors take a thousand steps of 1 ms each, a quarter of a second, with a report every 50 ms."""
    (stage.path / "costs.yaml").write_text(
        "work: {env_step: {base: 1e-3}, inference: {base: 0}, learn: {base: 0}}\n"
        f"edges: {{default: {{latency: 1e-9, bandwidth: 1e15}}}}\nstart: {start}\n"
    )
    settings = {"actors": 4, "envs_per_actor": 1, "total_steps": 1000, "batch_unrolls": 1}
    runs = [
        simulate(stage.path / name, cost_model=stage.path / "costs.yaml", eval_episodes=0, **settings) for name in "ab"
    ]
    assert least < runs[0].summary["wall_seconds"] < most
    assert result(runs[0]) == result(runs[1])


def test_who_is_restarted_has_to_come_up_again(stage: Any) -> None:
    (stage.path / "costs.yaml").write_text("start: 0.3\n")
    run = simulate(
        stage.run, cost_model=stage.path / "costs.yaml", faults=("kill learner 0 at 0.4",), total_steps=20_000
    )
    assert run.summary["restarts"] >= 1
    assert "restarting in 0.8 s" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        STATEFUL,
        {"faults": ("kill actor 1 at 0.18",)},
        {"total_steps": None, "total_seconds": 0.25, "optimizer": {"anneal": True}},
    ],
    ids=["plain", "all", "kill", "seconds"],
)
def test_a_resumed_run_equals_the_uninterrupted_one(settings: dict[str, Any], stage: Any) -> None:
    settings = {"checkpoint_every": 0.05, "keep": 100, "report_every": 0.02, **settings}
    whole = simulate(stage.path / "whole", **settings)
    saved = checkpoints(whole.path)
    assert len(saved) >= 3
    for cut in (0, len(saved) // 2):
        again = stage.path / f"again-{cut}"
        shutil.copytree(whole.path, again)
        for later in checkpoints(again)[cut + 1 :]:
            shutil.rmtree(later)
        run = launch("impala", defaults("impala", None, {**SMALL, **settings}), resume=again, quiet=True)
        assert result(run) == result(whole)
        assert run.summary["resumed_at_steps"] == read_meta(saved[cut])["env_steps"]
        assert rows(again) == rows(whole.path), "the rows after the checkpoint were removed and written again"


def test_a_killed_actor_is_replaced(stage: Any) -> None:
    run = simulate(stage.run, faults=("kill actor 1 at 0.05",), total_steps=20_000)
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["restarts"] == 1
    assert "actor 1 was killed; restarting" in (run.path / "log.txt").read_text()


def test_a_killed_learner_goes_on_from_its_checkpoint(stage: Any) -> None:
    run = simulate(stage.run, faults=("kill learner 0 at 0.13",), checkpoint_every=0.06, keep=100, total_steps=12_000)
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["restarts"] == 3, "queue and weight store restart with the learner"
    saved = checkpoints(run.path)
    assert all((path / "learner-0.safetensors").exists() for path in saved), "a checkpoint without its learner"
    before = [path for path in saved if read_meta(path)["time"] < 0.13]
    after = [path for path in saved if read_meta(path)["time"] > 0.13]
    assert before and after
    at_kill = json.loads((before[-1] / "learner-0.json").read_text())["updates"]
    last = json.loads((after[-1] / "learner-0.json").read_text())["updates"]
    redone = run.summary["updates"] - last
    assert last > at_kill, "the learner started over"
    assert redone > 0, "the updates since the checkpoint were lost, so they are counted but not in the learner"
    epochs = json.loads((run.path / "checkpoints" / "epoch-learner.json").read_text())["epoch"]
    assert epochs >= len(saved), "every incarnation of the learner has its own epoch"
    points = [(row["step"], row["time"]) for row in rows(run.path)]
    assert points == sorted(points), "the x-axis never decreases"


def test_a_killed_service_comes_back_empty(stage: Any) -> None:
    summary = simulate(stage.run, faults=("kill queue 0 at 0.05",)).summary
    assert (summary["exit_reason"], summary["restarts"]) == ("total_steps", 3), "the learner restarts with the queue"
    assert summary["dropped"]["queues"] == 1


@pytest.mark.parametrize("faults", [("lose actor.queue.insert at 0.05", "lose learner.queue.sample at 0.06"), ()])
def test_no_unroll_is_lost_or_used_twice(faults: tuple[str, ...], stage: Any) -> None:
    run = simulate(stage.run, faults=faults, unroll_length=10)
    (saved,) = checkpoints(run.path)
    counters = read_meta(saved)["monitor"]["counters"]
    queued = load_file(saved / "queue-0.safetensors")
    live = sum(name.endswith("/valid") for name in queued)
    assert counters["replay/inserted"] - counters["replay/sampled"] == live
    assert counters["replay/sampled"] - counters["updates"] in (0, 1, 2), "at most the prefetched batch is unused"
    under_way = counters["env_steps"] - counters["learner/steps"]
    # Two actors, each with an open unroll and one in transit; the queue; two batches at the learner.
    assert 0 <= under_way <= (2 * 2 + 2 + 2) * 10 * 4
    if faults:
        assert run.summary["wall_seconds"] > 1.0, "a lost reply is requested again after a second"


def test_a_delayed_reply_only_takes_longer(stage: Any) -> None:
    late = simulate(stage.run, faults=("delay learner.queue.sample by 0.7 at 0.05",))
    assert late.summary["exit_reason"] == "total_steps"
    assert late.summary["wall_seconds"] > 0.7


def test_a_slow_actor_slows_the_run(stage: Any) -> None:
    plain = simulate(stage.path / "plain", actors=1)
    slow = simulate(stage.path / "slow", actors=1, faults=("slow actor 0 by 10",))
    assert slow.summary["steps_per_second"] < 0.3 * plain.summary["steps_per_second"]


def test_what_the_user_can_mend_leaves_nothing_behind(stage: Any) -> None:
    with pytest.raises(ThespisError, match="torso 'nature' reads images"):
        simulate(stage.run, network={"torso": "nature"})
    assert not stage.run.exists()


def test_an_environment_that_fails_at_the_final_evaluation(stage: Any) -> None:
    run = simulate(stage.run, env="factories::fails_for_sixteen", eval_episodes=16, eval_every=0, total_steps=500)
    assert run.summary["exit_reason"] == "total_steps"
    assert run.summary["eval_return_mean"] is None
    assert "final evaluation failed: EnvError" in (run.path / "log.txt").read_text()


def test_an_interrupt_saves_and_leaves(stage: Any) -> None:
    process = stage.start("train", "impala", *stage.small(), "--on", "simulation", "--total-steps", 10**9)
    for line in process.stdout:
        if "updates" in line:
            break
    process.terminate()
    assert process.wait(10.0) == 130
    assert json.loads((stage.run / "summary.json").read_text())["exit_reason"] == "interrupted"
    assert len(checkpoints(stage.run)) >= 1


APEX = {"on": "simulation", "actors": 2, "eval_episodes": 1, "eval_every": 0.05, "replay": {"warm_up": 50}, "batch": 8}


@pytest.mark.parametrize("role", ["evaluator", "learner"])
def test_who_is_down_at_the_end_contributes_its_last_state(role: str, stage: Any) -> None:
    settings = {**APEX, "checkpoint_every": 0.05, "keep": 9, "total_seconds": 0.2}
    run = train("apex", quiet=True, run_dir=stage.run, faults=(f"kill {role} 0 at 0.19",), **settings)
    before, last = checkpoints(stage.run)[-2:]
    assert read_meta(last)["env_steps"] == run.summary["env_steps"]
    assert read_meta(last)["carried_over"][f"{role} 0"] == before.name
    assert (last / f"{role}-0.json").read_bytes() == (before / f"{role}-0.json").read_bytes()
    assert run.policy is not None


def test_a_learner_that_has_never_saved_leaves_no_checkpoint_but_an_error(stage: Any) -> None:
    with pytest.raises(RunFailed, match="its last checkpoint was not saved; there is none"):
        train("apex", quiet=True, run_dir=stage.run, faults=("kill learner 0 at 0.19",), total_seconds=0.2, **APEX)
    assert not checkpoints(stage.run)
