"""Checks before a run starts that this machine has enough processes, open files and memory.

Estimates are lower bounds: a run is refused only if it cannot work. If the system refuses a process later, `explain`
gives the same advice.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thespis.core.config import Experiment, NetworkConfig
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.settings import is_inline
from thespis.core.system import cgroups
from thespis.core.system.memory import available_memory

MIN_PROCESS_BYTES = 100 << 20
"""Minimum private memory of a process with torch and a small role (measured: 137 MB)."""
_ENV_BYTES = 1 << 10
"""Minimum memory of an environment."""
_STEP_BYTES = 32
"""Minimum memory of a step in an unroll."""
_BYTES_EACH = {"noise_table": 4, "batch": _STEP_BYTES, "samples": _STEP_BYTES, "pairs": _STEP_BYTES}
"""Minimum memory per item of a setting."""
_BASE_FILES, _FILES_PER_PROCESS = 64, 5
"""Open files of a supervisor, or of a role that all others call: a base, and a number per process."""


def check_capacity(program: Program, cfg: Experiment) -> None:
    """Raise ThespisError if this machine cannot hold the run; the message says what fits."""
    memory = memory_left()
    if cfg.actors * cfg.envs_per_actor * _ENV_BYTES > memory:
        raise ThespisError(
            f"{cfg.actors} actors with {cfg.envs_per_actor} environments each are more than this machine can hold; "
            "give fewer --actors or --envs-per-actor"
        )
    _check_sizes(cfg, memory, cfg.envs_per_actor)
    if cfg.learned is not None:
        _check_network(cfg.learned.network, memory)
    if cfg.on != "local":
        return
    processes = len(program.processes)
    others = processes - sum(spec.counts_as_actor for spec in program.roles)
    for what, limit in _limits(memory):
        if processes > limit:
            fewer = f"give at most --actors {limit - others}" if limit > others else "use a larger machine"
            raise ThespisError(f"{processes} processes are too many: {what}; {fewer}, or --on simulation")
    _raise_open_files(processes)


def _check_sizes(cfg: Any, memory: int, environments: int, prefix: str = "") -> None:
    """Refuse unrolls, batches and populations that are larger than the memory."""
    for part in dataclasses.fields(cfg):
        value = getattr(cfg, part.name)
        if part.name == "unroll_length":
            need = _STEP_BYTES * value * environments
        else:
            need = _BYTES_EACH.get(part.name, 0) * (value if isinstance(value, int) else 0)
        _refuse(f"{prefix}{part.name}", need, memory)
        if dataclasses.is_dataclass(value):
            _check_sizes(value, memory, environments, prefix if is_inline(part) else f"{prefix}{part.name}.")


def _check_network(network: NetworkConfig, memory: int) -> None:
    """Refuse a network that is larger than the memory."""
    sizes = (*network.hidden, network.lstm, 4 * network.lstm)
    # Each weight, its gradient, and two moments of the optimiser.
    need = 16 * sum(before * after for before, after in itertools.pairwise(sizes))
    _refuse("network.hidden or .lstm", need, memory)


def _refuse(setting: str, need: int, memory: int) -> None:
    if need > memory:
        raise ThespisError(
            f"--{setting.replace('_', '-')} is too large: it takes {need / (1 << 30):,.1f} GB, and "
            f"{memory / (1 << 30):.1f} GB of memory are free; give less"
        )


def explain(error: OSError, program: Program) -> str:
    """Describe what to do if the system refuses to start a process."""
    processes = len(program.processes)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_few_files(_files(processes), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return f"{error.strerror}; the run has {processes} processes: give fewer --actors, or --on simulation"
    return str(error)


def memory_left() -> int:
    """Return the bytes that a run can use: of the machine, and of its control group."""
    # Not the remainder of the group's limit: cached files count as used current, but the kernel can drop them.
    limit = cgroups.cgroup_limit("memory", unified="max", legacy="limit_in_bytes")
    return available_memory() if limit is None else min(available_memory(), limit)


def _limits(memory: int) -> Iterator[tuple[str, int]]:
    """Yield each limit on the number of processes, with its reason."""
    each, free = MIN_PROCESS_BYTES >> 20, memory / (1 << 30)
    yield f"each takes at least {each} MB, and {free:.1f} GB of memory are free", memory // MIN_PROCESS_BYTES
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # the limit does not apply to root
        yield f"`ulimit -u` allows {soft}", soft
    allowed = cgroups.contents("pids", unified="max", legacy="max")
    current = cgroups.contents("pids", unified="current", legacy="current")
    for most, now in zip(allowed, current, strict=False):
        if most.isdecimal():
            yield f"the control group allows {most}", int(most) - int(now)
    threads = _number(Path("/proc/sys/kernel/threads-max"))
    if threads is not None:
        yield f"the kernel allows {threads}", threads


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # missing, or `max`
        return None


def _files(processes: int) -> int:
    return _BASE_FILES + _FILES_PER_PROCESS * processes


def _raise_open_files(processes: int) -> None:
    """Raise the limit of open files to the run's need; raise ThespisError if the system does not allow it."""
    wanted = _files(processes)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ThespisError(_too_few_files(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _too_few_files(wanted: int, limit: int) -> str:
    return (
        f"this run needs {wanted} open files and may have {limit}; raise the limit with `ulimit -n {wanted}`, or give "
        "fewer --actors"
    )
