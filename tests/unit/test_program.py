"""Programs: the checks before a run, their messages, and the description of the graph."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from thespis.architectures import impala
from thespis.cli.show import mermaid
from thespis.core.config import OptimizerConfig
from thespis.core.errors import ThespisError
from thespis.core.program import Edge, Program, RoleSpec, restart_limit
from thespis.core.service import Method, RoleDescription, description_of
from thespis.roles import ParameterServer, Queue, WeightStore
from thespis.training.registry import defaults


class Service:
    description: ClassVar = RoleDescription(methods={"ask": Method("inference", takes="request", gives="response")})

    def __init__(self, ctx: Any, *, size: int = 1) -> None: ...

    @classmethod
    def large(cls, ctx: Any) -> Service:
        return cls(ctx, size=100)


class Worker:
    def __init__(self, ctx: Any, ask: Any, extra: Any = None) -> None: ...


def build_service(ctx: Any) -> Service:
    return Service(ctx)


def build_something(ctx: Any):  # type: ignore[no-untyped-def]
    return Service(ctx)


def refusal(program: Program) -> str:
    with pytest.raises(ThespisError) as error:
        program.check()
    return str(error.value)


def queue_program(capacity: int, batch: int, actors: int = 1) -> Program:
    program = Program("test")
    queue = program.at().add("queue", Queue, capacity=capacity)
    program.at().add("learner", Worker, queue.edge("sample", items=batch))
    for _ in range(actors):
        program.at().add("actor", Worker, queue.edge("insert"))
    return program


def test_a_sound_program_is_accepted() -> None:
    queue_program(capacity=2, batch=2).check()


def test_a_check_reads_each_role_a_few_times_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `--actors 100000` is not refused for minutes."""
    reads = 0
    edges = RoleSpec.edges

    def counted(spec: RoleSpec) -> list[Edge]:
        nonlocal reads
        reads += 1
        return edges.fget(spec)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(RoleSpec, "edges", property(counted))
    program = impala.program(defaults("impala", None, {"actors": 50, "learners": 50}))
    program.check()
    assert reads <= 5 * len(program.roles)


def test_a_call_to_a_role_of_another_program() -> None:
    elsewhere = Program("elsewhere").at().add("oracle", Service)
    program = Program("test")
    program.at().add("worker", Worker, elsewhere.edge("ask"))
    assert refusal(program) == "test: worker 0 calls 'oracle' 0, but no such role was added"


def test_a_method_that_is_not_an_edge() -> None:
    program = Program("test")
    program.at().add("worker", Worker, program.at().add("oracle", Service).edge("answer"))
    assert refusal(program) == "test: worker 0 calls oracle.answer, but oracle only has ask"


@pytest.mark.parametrize("builder", [build_something, Worker])
def test_a_role_that_serves_no_edges(builder: Any) -> None:
    program = Program("test")
    program.at().add("worker", Worker, program.at().add("oracle", builder).edge("ask"))
    assert refusal(program).startswith("test: worker 0 calls oracle 0, which serves no edges; give its class a `descr")


@pytest.mark.parametrize("kind", ["lock", "file", "builder"])
def test_parts_that_cannot_travel(kind: str, tmp_path: Path) -> None:
    lock = threading.Lock()
    with (tmp_path / "file").open("w") as file:
        program = Program("test")
        ask = program.at().add("oracle", Service).edge("ask")
        if kind == "builder":
            program.at().add("worker", lambda ctx, ask: Worker(ctx, ask, lock), ask)
        else:
            program.at().add("worker", Worker, ask, extra=lock if kind == "lock" else file)
        result = refusal(program)
    assert result.startswith("worker 0: ") and result.endswith("; pass a function that builds it instead")
    assert "cannot be sent to another process" in result


def test_a_setting_that_cannot_travel_is_named() -> None:
    """The message stays short, although the config is hundreds of words long."""
    lock = threading.Lock()
    program = Program("test")
    program.at().add("worker", Service, impala.Config(env=lambda: lock))
    message = refusal(program)
    assert message.startswith("worker 0: env (<function") and "Config(" not in message


def test_a_lambda_that_can_travel_is_no_problem() -> None:
    size = 3
    program = Program("test")
    program.at().add("oracle", lambda ctx: Service(ctx, size=size))
    program.check()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            queue_program(2, 3),
            "queue: a batch of 3 never fits a queue of capacity 2, so the learner",
        ),
        (queue_program(0, 1), "queue: capacity 0 holds nothing; raise it to at least 1"),
        (queue_program(2, 1, actors=0), "queue: no actor inserts, so sampling would wait forever"),
    ],
)
def test_waiting_forever_is_refused(program: Program, words: str) -> None:
    assert refusal(program).startswith(words)


def test_the_kind_of_a_role_is_found_however_it_is_built() -> None:
    program = Program("test")
    for builder in (Service, Service.large, build_service):
        program.at().add("oracle", builder)
    program.at().add("oracle", build_something)
    assert [spec.kind for spec in program.roles] == [Service, Service, Service, None]


def test_adding_the_same_name_counts_up() -> None:
    program = queue_program(2, 1, actors=3)
    assert [str(spec) for spec in program.roles] == ["queue 0", "learner 0", "actor 0", "actor 1", "actor 2"]
    assert list(program.processes) == ["queue-0", "learner-0", "actor-0", "actor-1", "actor-2"]
    assert program.find("actor", 3) is None


def test_a_shared_process_has_the_patience_of_its_least_patient_role() -> None:
    program = Program("test")
    program.at(process="storage", restarts=5).add("queue", Queue, capacity=1)
    program.at(process="storage", restarts=2).add("weights", WeightStore)
    assert restart_limit(program.processes["storage"]) == 2


def test_arrows_and_description() -> None:
    program = queue_program(2, 1, actors=2)
    assert program.arrows() == [
        ("learner", 1, "queue", "sample", Method("experience", gives="batch")),
        ("actor", 2, "queue", "insert", Method("experience", takes="unroll")),
    ]
    described = program.describe()
    assert described["program"] == "test"
    assert described["processes"]["actor-1"] == [{"role": "actor", "index": 1, "restarts": 0}]
    assert described["edges"][1] == {
        "caller": "actor", "callers": 2, "service": "queue", "method": "insert", "kind": "experience",
        "takes": "unroll", "gives": "", "retained": False,
    }  # fmt: skip
    assert described["roles"]["queue"] == {"kind": "Queue", "evaluates": False}


def test_impossible_settings_of_an_architecture() -> None:
    from thespis.architectures import impala

    cfg = defaults("impala", None, {"batch_unrolls": 5, "queue_capacity": 4})
    assert isinstance(cfg, impala.Config)
    assert refusal(impala.program(cfg)).startswith("queue: a batch of 5 never fits a queue of capacity 4")


@pytest.mark.parametrize(
    ("workers", "settings", "complaint"),
    [
        (2, {"mode": "sync", "quorum": 3}, "waits for 3 gradients but only 2 workers push"),
        (0, {}, "no worker pushes gradients"),
        (2, {"mode": "sync", "quorum": 0}, "use fewer backup workers"),
        (2, {"mode": "stale", "max_staleness": -1}, "at least 0"),
    ],
)
def test_gradients_that_would_wait_forever_are_refused(workers: int, settings: dict[str, Any], complaint: str) -> None:
    program = Program("refused")
    server = program.at().add("server", ParameterServer, optimizer=OptimizerConfig(), total_steps=1, **settings)
    for _ in range(workers):
        program.at().add("worker", Worker, server.edge("push"))
    with pytest.raises(ThespisError, match=complaint):
        program.check()


def test_a_class_without_a_description_is_a_plain_worker() -> None:
    assert description_of(Worker) == description_of(None) == RoleDescription()
    assert description_of(Service).methods["ask"].gives == "response"


@pytest.mark.parametrize(
    ("method", "arrow"),
    [
        (Method("weights", gives="weights"), 'oracle -->|"ask: weights"| worker'),
        (Method("experience", takes="unroll"), 'worker -->|"ask: unroll (experience)"| oracle'),
        (
            Method("inference", takes="request", gives="response"),
            'worker <-->|"ask: request, response (inference)"| oracle',
        ),
    ],
)
def test_arrows_are_drawn_the_way_the_payload_goes(method: Method, arrow: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Service, "description", RoleDescription(methods={"ask": method}))
    program = Program("test")
    program.at().add("worker", Worker, program.at().add("oracle", Service).edge("ask"))
    assert arrow in mermaid(program)
