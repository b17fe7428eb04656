"""The gradients edge, under every runtime: each gradient takes effect once, whichever role is lost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from contract_roles import FragileServer, Pusher, read

from thespis.core.budget import Budget
from thespis.core.config import OptimizerConfig
from thespis.core.program import Program
from thespis.roles import ParameterServer

PUSHES, WORKERS = 30, 2
pytestmark = pytest.mark.timeout(120)


def build(path: Path, server: Any) -> Program:
    program = Program("gradients")
    handle = server(program)
    for index in range(WORKERS):
        edges = handle.edge("join"), handle.edge("push")
        program.at().add("worker", Pusher, *edges, path / f"pushed-{index}", PUSHES, WORKERS)
    return program


def sound(program: Program) -> Any:
    optimizer = OptimizerConfig(kind="sgd", learning_rate=1.0)
    return program.at().add("server", ParameterServer, optimizer=optimizer, budget=Budget(1))


@pytest.mark.parametrize("on", ["simulation", "local", "ray"])
def test_every_gradient_takes_effect_once(on: str, perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, sound), on, total_steps=WORKERS)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["updates"] == PUSHES * WORKERS
    for index in range(WORKERS):
        assert [applied for _, _, applied in read(tmp_path / f"pushed-{index}")] == [*range(1, PUSHES + 1)]


@pytest.mark.parametrize("faults", [("lose worker.server.push at 0.05", "lose worker.server.push at 0.1")])
def test_lost_replies_change_nothing(faults: tuple[str, ...], perform: Any, tmp_path: Path) -> None:
    outcome = perform(build(tmp_path, sound), "simulation", faults, total_steps=WORKERS)
    assert outcome.summary["updates"] == PUSHES * WORKERS
    assert outcome.summary["wall_seconds"] > 1.0, "the faults did not happen"


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_server_that_dies_before_it_answers(how: str, perform: Any, tmp_path: Path) -> None:
    """The server restarts from a checkpoint with the gradient, and the call is delivered again."""

    def fragile(program: Program) -> Any:
        once = tmp_path / "server.crashed"
        return program.at(restarts=1).add("server", FragileServer.fragile, crash_at=(20, how), once=once)

    outcome = perform(build(tmp_path, fragile), "local", total_steps=WORKERS, checkpoint_every=0.2)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["restarts"] == 1
    assert outcome.summary["dropped"] == {"repeated_gradients": 1}
    journals = [read(tmp_path / f"pushed-{index}") for index in range(WORKERS)]
    assert {epoch for journal in journals for _, epoch, _ in journal} == {0, 1}
    for journal in journals:
        assert [number for number, _, _ in journal] == [*range(1, PUSHES + 1)]
        for (_, before, old), (_, epoch, new) in pairwise(journal):
            # Gradients after the checkpoint are lost with the server; none is applied twice.
            assert new == old + 1 if epoch == before else new <= old + 1
