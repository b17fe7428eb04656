"""es: its graph, the same parameters for any number of workers, faults, divergence, and resume."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import until
from fakes import YieldingContext

from thespis import train
from thespis.algorithms.es import ES, ARSConfig
from thespis.architectures.es import Config, build_coordinator, program
from thespis.cli.main import main
from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.networks.running_moments import Moments
from thespis.roles.coordinator import Snapshot, UnitOrder, UnitRequest, UnitResult
from thespis.training.evaluation import play
from thespis.training.launch import launch
from thespis.training.registry import defaults
from thespis.training.trained_run import TrainedRun

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "actors": 2, "pairs": 8, "envs_per_actor": 4, "total_steps": 4000, "noise_table": 4096,
    "network": {"hidden": [4], "normalize_observations": True}, "eval_episodes": 2, "eval_every": 0.0,
}  # fmt: skip


def run_es(path: Path, on: str = "simulation", **settings: Any) -> TrainedRun:
    return train("es", run_dir=path, quiet=True, on=on, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of one worker without faults: the result that every other run must have."""
    return run_es(tmp_path_factory.mktemp("calm") / "run", actors=1).summary


SAME = ("weights_sha256", "env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean")


@pytest.mark.timeout(60)
def test_any_number_of_workers_finds_the_same_parameters(calm: dict[str, Any], stage: Any) -> None:
    """Workers differ only in idle time and duration."""
    assert calm["updates"] >= 3 and calm["env_steps"] >= 4000
    for workers, protocol in ((2, "broadcast"), (8, "seeds"), (32, "broadcast")):
        result = run_es(stage.path / f"{workers}", actors=workers, protocol=protocol, repeat_after=0.0).summary
        assert {name: result[name] for name in SAME} == {name: calm[name] for name in SAME}
        assert result["wall_seconds"] < calm["wall_seconds"] and result["dropped"] == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", ["broadcast", "seeds"])
def test_processes_find_the_parameters_of_the_simulation(protocol: str, calm: dict[str, Any], stage: Any) -> None:
    # An evaluator may start too late, and the unit of a worker without a core would be repeated.
    run = run_es(stage.run, on="local", protocol=protocol, eval_episodes=0, repeat_after=0.0)
    result = run.summary
    assert result["exit_reason"] == "total_steps" and result["restarts"] == 0
    assert set(result["edges"]) == {"worker.coordinator.order"} and result["lag"]["mean"] is None
    assert {name: result[name] for name in SAME[:-1]} == {name: calm[name] for name in SAME[:-1]}
    assert all(episode.reward > 5 for episode in play(run, 2).episodes)


@pytest.mark.timeout(60)
def test_returns_travel_instead_of_parameters(stage: Any) -> None:
    """With 2,802 parameters and 16 episodes, the protocol `seeds` saves nearly all bytes."""
    wide: dict[str, Any] = {"network": {"hidden": [400]}, "noise_table": 8192, "total_steps": 1500, "eval_episodes": 0}
    bytes_of = {
        protocol: run_es(stage.path / protocol, protocol=protocol, **wide).summary["edges"]["worker.coordinator.order"]
        for protocol in ("broadcast", "seeds")
    }
    assert bytes_of["seeds"]["calls"] == bytes_of["broadcast"]["calls"]
    # Each worker receives parameters and both averages of Adam once, when it joins; later it receives returns only.
    joined = 2 * 3 * 4 * 2802
    assert bytes_of["seeds"]["bytes"] - joined < 0.3 * (bytes_of["broadcast"]["bytes"] - joined / 3)


@pytest.mark.timeout(60)
def test_episodes_are_cut_at_a_multiple_of_the_mean(stage: Any) -> None:
    result = run_es(stage.path / "capped", cap_factor=1.5, total_steps=2000, report_every=0.01)
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    caps = [row["es/episode_cap"] for row in rows if "es/episode_cap" in row]
    assert caps and all(5 < cap < 500 for cap in caps)
    saved = json.loads(next((result.path / "checkpoints").glob("update-*/coordinator-0.json")).read_text())
    assert saved["cap"] == caps[-1]


@pytest.mark.timeout(60)
def test_augmented_random_search(stage: Any) -> None:
    run = run_es(stage.run, variant="ars", ars=ARSConfig(pairs=8, top=4, survival_bonus=1.0))
    weights = run.policy.network.state_dict()
    assert weights["policy.weight"].shape == (2, 4), "linear"
    assert 0 < float(weights["encoder.torsos.0.normalizer.count"]) < run.summary["env_steps"], "of episodes alone"
    assert not run.policy.network.policy.weight.any(), "every step earns 1, so all returns without the bonus are 0"
    free = run_es(stage.path / "free", variant="ars")
    assert free.policy.network.policy.weight.any()


@pytest.mark.timeout(60)
def test_images_go_through_one_network_per_member(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parent / "runtime"))
    settings: dict[str, Any] = {"env": "es_envs::pictures", "pairs": 2, "total_steps": 30, "noise_table": 2_000_000,
                                "network": {"torso": "nature"}}  # fmt: skip
    run = run_es(stage.run, **settings)
    assert run.summary["updates"] >= 2 and run.summary["eval_episodes"] == 2
    assert run_es(stage.path / "one", actors=1, **settings).summary["weights_sha256"] == run.summary["weights_sha256"]


# -- faults -------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("fault", "protocol", "restarts"),
    [
        ("kill worker 1 at 0.03", "broadcast", 1),
        ("kill worker 1 at 0.03", "seeds", 1),
        ("lose worker.coordinator.order at 0.03", "broadcast", 0),
        ("slow worker 0 by 20", "seeds", 0),
    ],
)
def test_faults_cost_time_and_nothing_else(
    fault: str, protocol: str, restarts: int, calm: dict[str, Any], stage: Any
) -> None:
    result = run_es(stage.run, faults=(fault,), protocol=protocol, actors=3).summary
    assert (result["exit_reason"], result["restarts"]) == ("total_steps", restarts)
    alike = set(SAME) - {"env_steps"}
    assert {name: result[name] for name in alike} == {name: calm[name] for name in alike}
    # Steps of repeated and discarded units were taken, so they count.
    assert (result["env_steps"] > calm["env_steps"]) == bool(result["dropped"] or "lose" in fault)
    if fault.startswith("kill"):
        assert result["dropped"]["units"] == 1
    if fault.startswith("slow"):
        assert result["dropped"]["late_results"] + result["dropped"].get("repeated_results", 0) > 0


@pytest.mark.timeout(60)
def test_a_killed_coordinator_goes_on_from_its_checkpoint(stage: Any) -> None:
    """The coordinator repeats the generations since its checkpoint, with the same result. All steps count."""
    run = run_es(stage.run, faults=("kill coordinator 0 at 0.2",), protocol="seeds", checkpoint_every=0.1)
    assert (run.summary["exit_reason"], run.summary["restarts"]) == ("total_steps", 1)
    saved = json.loads((run.policy.checkpoint / "coordinator-0.json").read_text())
    assert saved["generation"] < run.summary["updates"] and saved["steps"] < run.summary["env_steps"]
    straight = run_es(stage.path / "straight", total_steps=saved["steps"]).summary
    assert straight["updates"] == saved["generation"]
    assert straight["weights_sha256"] == run.summary["weights_sha256"]


@pytest.mark.timeout(90)
def test_a_killed_worker_on_processes(stage: Any) -> None:
    process = stage.start("train", "es", "--run-dir", stage.run, "--actors", 2, "--pairs", 8, "--envs-per-actor", 4,
                          "--eval-episodes", 0, "--checkpoint-every", 0.3, "--total-steps", 150_000)  # fmt: skip
    until(lambda: list(stage.run.glob("checkpoints/update-*")))
    os.kill(json.loads((stage.run / "topology.json").read_text())["pids"]["worker-1"], signal.SIGKILL)
    out, err = process.communicate(timeout=80)
    assert process.returncode == 0, out + err
    result = TrainedRun(stage.run).summary
    assert (result["exit_reason"], result["restarts"], result["dropped"]["units"]) == ("total_steps", 1, 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", ["broadcast", "seeds"])
def test_a_resumed_run_equals_the_uninterrupted_one(protocol: str, stage: Any) -> None:
    settings = {**SMALL, "on": "simulation", "protocol": protocol, "actors": 1, "total_steps": 7000, "keep": 100}
    settings["checkpoint_every"] = 0.08  # every unit must fit between two checkpoints
    whole = train("es", run_dir=stage.path / "whole", quiet=True, **settings)
    saved = sorted((whole.path / "checkpoints").glob("update-*"))
    assert len(saved) > 2, "there was no checkpoint"
    counts = [json.loads((path / "coordinator-0.json").read_text()) for path in saved]
    assert any(count["units"] for count in counts), "no checkpoint was within a generation"
    shutil.copytree(whole.path, stage.path / "again")
    for later in saved[1:]:
        shutil.rmtree(stage.path / "again" / "checkpoints" / later.name)
    again = launch("es", defaults("es", None, settings), resume=stage.path / "again", quiet=True)
    for name in SAME:
        assert again.summary[name] == whole.summary[name], name
    uncut = run_es(stage.path / "uncut", total_steps=7000).summary
    assert whole.summary["weights_sha256"] == uncut["weights_sha256"], "a unit was played with other seeds"


# -- the coordinator alone --------------------------------------------------------------------------


def scene_of(protocol: str, **settings: Any) -> tuple[YieldingContext, Any]:
    cfg: Any = defaults("es", None, {**SMALL, "protocol": protocol, "check_every": 1, **settings})
    ctx = YieldingContext(Identity("coordinator", 0, run_seed=0))
    return ctx, build_coordinator(ctx, cfg)


def result_of(generation: int, order: UnitOrder, digest: str | None = None) -> UnitResult:
    rng = np.random.default_rng([generation, order.unit])
    return UnitResult(generation, order.unit, rng.normal(size=(2, 2)).astype(np.float32), np.full((2, 2), 10, np.int32),
                  40, Moments.of(np.ones((1, 4))), digest)  # fmt: skip


def test_a_worker_whose_parameters_differ_is_put_right_and_its_result_dropped() -> None:
    async def scene() -> None:
        ctx, coordinator = scene_of("seeds")
        order = await coordinator.order(UnitRequest(0, 1, None), None)
        assert isinstance(order.news, Snapshot) and set(order.news.slots) == {"mean", "square", "steps"}
        again = await coordinator.order(UnitRequest(0, 1, 0), result_of(0, order, "0" * 64))
        assert isinstance(again.news, Snapshot)
        assert ctx.counters() == {"dropped/diverged_results": 1}
        # Its unit is repeated: all four results are still needed.
        orders = [again] + [await coordinator.order(UnitRequest(1, 1, None), None) for _ in range(3)]
        assert sorted(each.unit for each in orders) == [0, 1, 2, 3]
        await coordinator.close()

    asyncio.run(scene())


def test_who_is_a_few_generations_behind_gets_their_returns_and_who_is_too_far_the_parameters() -> None:
    async def scene() -> None:
        ctx, coordinator = scene_of("seeds", total_steps=10_000_000)

        async def generation(number: int) -> None:
            order = await coordinator.order(UnitRequest(1, 1, None), None)
            for _ in range(3):
                order = await coordinator.order(UnitRequest(1, 1, number), result_of(number, order))
            waiting = asyncio.create_task(coordinator.order(UnitRequest(1, 1, number), result_of(number, order)))
            order = await waiting
            coordinator._release([order.unit])

        for number in range(3):
            await generation(number)
        order = await coordinator.order(UnitRequest(0, 1, 1), None)
        assert [result.number for result in order.news] == [1, 2]
        assert sum(result.returns.nbytes for result in order.news) == 2 * 16 * 4
        coordinator._release([order.unit])
        for number in range(3, 70):
            await generation(number)
        order = await coordinator.order(UnitRequest(2, 1, 1), None)
        assert isinstance(order.news, Snapshot) and ctx.counters()["dropped/outdated_copies"] == 1
        await coordinator.close()

    asyncio.run(scene())


def test_a_unit_that_is_out_for_too_long_is_given_to_another_and_the_later_result_dropped() -> None:
    async def scene() -> None:
        ctx, coordinator = scene_of("broadcast", repeat_after=2.0)
        for generation in range(2):
            orders = [await coordinator.order(UnitRequest(worker, 1, None), None) for worker in range(4)]
            ctx.time += 1.0
            if generation == 1:
                break
            waiting = [asyncio.create_task(coordinator.order(UnitRequest(w, 1, 0), result_of(0, order)))
                       for w, order in enumerate(orders)]  # fmt: skip
            coordinator._release([(await each).unit for each in waiting])
        idle = asyncio.create_task(coordinator.order(UnitRequest(0, 1, 1), result_of(1, orders[0])))
        await asyncio.sleep(0.01)
        assert not idle.done(), "the other units are not overdue yet"
        ctx.time += 1.5
        coordinator._wake()
        repeated = await idle
        assert repeated.unit == orders[1].unit and ctx.counters()["es/repeated_units"] == 1
        late = asyncio.create_task(coordinator.order(UnitRequest(1, 1, 1), result_of(1, orders[1])))
        again = asyncio.create_task(coordinator.order(UnitRequest(0, 1, 1), result_of(1, repeated)))
        await asyncio.sleep(0.01)
        assert ctx.counters()["dropped/repeated_results"] == 1
        for task in (late, again):
            task.cancel()
        await asyncio.gather(late, again, return_exceptions=True)
        await coordinator.close()

    asyncio.run(scene())


def test_the_unit_of_a_dead_worker_is_free_for_its_next_incarnation() -> None:
    async def scene() -> None:
        _, coordinator = scene_of("broadcast")
        first = await coordinator.order(UnitRequest(0, 1, None), None)
        others = [await coordinator.order(UnitRequest(1, 1, None), None) for _ in range(3)]
        assert first.unit not in [order.unit for order in others]
        again = await coordinator.order(UnitRequest(0, 2, None), None)
        assert again.unit == first.unit
        await coordinator.close()

    asyncio.run(scene())


# -- refused settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"pairs": 0}, "--pairs is 0"),
        ({"envs_per_actor": 5}, "--envs-per-actor is 5"),
        ({"pairs": 12, "envs_per_actor": 16}, "units split the 24 episodes of a generation"),
        ({"noise": 0.0}, "--noise is 0.0; give more than 0"),
        ({"cap_factor": 0.9}, "--cap-factor is 0.9"),
        ({"variant": "ars", "ars": {"top": 9}}, "--ars.top is 9"),
    ],
)
def test_settings_it_cannot_have(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        defaults("es", None, settings)


def test_idle_workers_are_announced() -> None:
    assert "4 units of work, so 2 workers will be idle" in program(Config(actors=6, algorithm=ES(pairs=32))).notes[0]
    assert not program(Config(actors=4, algorithm=ES(pairs=32))).notes


def test_it_carries_episodes_and_nothing_else() -> None:
    assert defaults("es", "Swimmer-v5", {"algorithm": "es"}) == defaults("es", "Swimmer-v5", {})
    with pytest.raises(ThespisError, match="carries returns of episodes; choose es$"):
        defaults("es", None, {"algorithm": "ppo"})
    with pytest.raises(ThespisError, match="--algorithm es learns from returns of episodes, and .* carries unrolls"):
        defaults("impala", None, {"algorithm": "es"})


@pytest.mark.parametrize(("variant", "deviation"), [("es", "0.2"), ("ars", "0.7")])
def test_exploration_is_the_noise_of_the_variant(variant: str, deviation: str) -> None:
    cfg = defaults("es", None, {"variant": variant, "noise": 0.2, "ars": {"noise": 0.7}})
    assert cfg.exploration == f"noise on the parameters: standard deviation {deviation}"


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--env FrozenLake-v1 --network.normalize-observations", "plain vectors"),
        ("--noise-table 100", "--noise-table is 100"),
    ],
)
def test_what_cannot_be_trained_is_refused(flags: str, what: str, stage: Any, capfd: Any) -> None:
    assert main(["train", "es", "--run-dir", str(stage.run), *flags.split()]) == 2
    assert what in capfd.readouterr().err
