"""Every runtime names deadlocked roles and failed services, and leaves no half-written file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_roles import Consumer, HalfWriter, Mute, Producer, Responder

from thespis.core.program import Program
from thespis.roles import Queue

pytestmark = pytest.mark.timeout(120)
RUNTIMES = ["simulation", "local", "ray"]


@pytest.mark.parametrize("on", RUNTIMES)
def test_a_service_that_never_answers(on: str, perform: Any) -> None:
    program = Program("silence")
    program.at().add("asker", Responder, program.at().add("oracle", Mute).edge("ask"))
    outcome = perform(program, on, stall_timeout=3.0)
    assert outcome.summary["exit_reason"] == "stalled"
    assert "asker 0 waits for asker.oracle.ask" in outcome.error
    assert "asker 0 waits for asker.oracle.ask" in outcome.log
    if on != "simulation":
        assert "hread 0x" in outcome.log, "the stacks of all processes belong in the log"


def test_the_simulation_finds_a_deadlock(perform: Any, tmp_path: Path) -> None:
    program = Program("starved")
    queue = program.at().add("queue", Queue, capacity=4)
    program.at().add("producer", Producer, queue.edge("insert"), tmp_path / "acked", 3)
    sample = queue.edge("sample", items=4)
    program.at().add("consumer", Consumer, sample, tmp_path / "taken", 4, tmp_path / "acked")
    outcome = perform(program, "simulation")
    assert outcome.summary["exit_reason"] == "deadlock"
    assert outcome.error == "nothing can run; consumer 0 waits for consumer.queue.sample"


@pytest.mark.parametrize("process", [None, "together"])
@pytest.mark.parametrize("on", RUNTIMES)
def test_a_service_that_fails_is_named_itself(on: str, process: str | None, perform: Any) -> None:
    program = Program("failing")
    oracle = program.at(process=process).add("oracle", Mute, error="no such question")
    program.at(process=process).add("asker", Responder, oracle.edge("ask"))
    outcome = perform(program, on)
    assert outcome.summary["exit_reason"] == "error"
    assert outcome.error.startswith("oracle 0: ValueError: no such question")
    assert outcome.error.count("Traceback") == 1


@pytest.mark.parametrize("on", RUNTIMES)
def test_the_end_of_a_run_removes_what_a_death_left_half_written(on: str, perform: Any, stage: Any) -> None:
    program = Program("half")
    how = "raise" if on == "simulation" else "kill"
    program.at(restarts=0).add("writer", HalfWriter, stage.run / "checkpoints", how)
    outcome = perform(program, on)
    assert outcome.summary["exit_reason"] == "error"
    assert (stage.run / "crashed").exists()
    assert not list(stage.run.rglob(".tmp-*"))
