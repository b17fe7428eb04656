"""The Ray cluster of a run: the user's cluster, or a local Ray that ends with the run."""

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
from thespis.core.system.reaper import reaped
from thespis.runtime.signals import kept_handlers

_MARK = "THESPIS_RAY"
_TOKEN = secrets.token_hex(32)
"""Token of a local Ray. One per process, because Ray reads it once per process."""


@contextmanager
def cluster(cfg: Experiment, cpus: float) -> Iterator[None]:
    """Connect to the user's cluster or start a local Ray, unless this process is already connected."""
    if ray.is_initialized():
        yield
    elif cfg.ray_address is not None:
        _check_address(cfg.ray_address)
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
    """Start a local Ray for the time of the run, without dashboard and protected by a token."""
    base = tempfile.gettempdir()
    # Ray creates sockets there, and the name of a socket has at most 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="thespis-ray-", dir=base if len(base) < 23 else "/tmp"))
    # Ray makes its directory accessible to all users, so it gets a subdirectory of a private one (0700).
    within = directory / "r"
    before = {name: os.environ.pop(name, None) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", _MARK)}
    # A local Ray requires a token by default and reads it from this variable.
    os.environ |= {"RAY_AUTH_TOKEN": _TOKEN, _MARK: directory.name}
    # Ray's processes also detect a killed driver, but some take more than ten seconds.
    with reaped(_MARK, directory.name, directory):
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


def _check_address(address: str) -> None:
    """Check that the address accepts connections; Ray itself takes two minutes to give up."""
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
        with kept_handlers():  # Ray installs a SIGTERM handler that exits at once
            ray.init(**where, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises a dozen types, among them RuntimeError
        raise ThespisError(f"Ray at {where['address']} cannot be reached: {' '.join(str(error).split())}") from error


def supply() -> str:
    """Describe the resources of the cluster, for an error message."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    per_node = [
        f"{node['NodeManagerAddress']} {node['Resources'].get('CPU', 0):g} CPU"
        + (f" {node['Resources']['GPU']:g} GPU" if node["Resources"].get("GPU") else "")
        for node in nodes
    ]
    free = ray.available_resources()
    return f"The cluster has {', '.join(per_node)}; free are {free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU"
