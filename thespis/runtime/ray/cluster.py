"""The cluster a run lives on: the user's, or a Ray of its own that goes with it."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.system.cores import available_cores
from thespis.core.system.reaper import guarded
from thespis.runtime.signals import kept_handlers

_MARK = "THESPIS_RAY"
_TOKEN = secrets.token_hex(32)
"""For a Ray of our own. One per process, because Ray reads it once per process."""


@contextmanager
def cluster(cfg: Experiment, cpus: float) -> Iterator[None]:
    """The user's cluster, the one this process has joined already, or a Ray of our own for the time of the run."""
    if ray.is_initialized():
        yield
    elif cfg.ray_address is not None:
        _knock(cfg.ray_address)
        _connect(address=cfg.ray_address)
        try:
            yield
        finally:
            ray.shutdown()
    else:
        with own_ray(max(available_cores(), math.ceil(cpus))):
            yield


@contextmanager
def own_ray(cpus: int) -> Iterator[None]:
    """A Ray for the time of the run, without dashboard, which answers only to those who know its token."""
    base = tempfile.gettempdir()
    # Ray puts sockets there, and the name of a socket has 107 characters at most.
    directory = Path(tempfile.mkdtemp(prefix="thespis-ray-", dir=base if len(base) < 23 else "/tmp"))
    # Ray opens the directory it is given to everybody. This one stays closed (0700), and Ray gets one below it.
    within = directory / "r"
    before = {name: os.environ.pop(name, None) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", _MARK)}
    # Left to itself, a local Ray demands a token, and takes it from here.
    os.environ |= {"RAY_AUTH_TOKEN": _TOKEN, _MARK: directory.name}
    # Ray's own processes notice that their driver was killed too, but not all of them within ten seconds.
    with guarded(_MARK, directory.name, directory):
        try:
            _connect(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                _temp_dir=str(within),
            )
            yield
        finally:
            ray.shutdown()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _knock(address: str) -> None:
    """Ray itself takes two minutes to give up on an address where nobody listens."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError) as error:
        raise ThespisError(
            f"--ray-address {address}: no Ray answers there ({error}); give HOST:PORT or auto"
        ) from error


def _connect(**where: Any) -> None:
    try:
        logging.getLogger("ray").setLevel(logging.ERROR)
        with kept_handlers():  # Ray sets its own for SIGTERM, which exits at once
            ray.init(**where, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises a dozen kinds, among them RuntimeError
        raise ThespisError(f"Ray at {where['address']} cannot be reached: {' '.join(str(error).split())}") from error


def supply() -> str:
    """What the cluster has, for an error message."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    per_node = [
        f"{node['NodeManagerAddress']} {node['Resources'].get('CPU', 0):g} CPU"
        + (f" {node['Resources']['GPU']:g} GPU" if node["Resources"].get("GPU") else "")
        for node in nodes
    ]
    free = ray.available_resources()
    return f"The cluster has {', '.join(per_node)}; free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"
