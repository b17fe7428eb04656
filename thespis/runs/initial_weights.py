"""Initial weights from another run: found and matched before any process starts, and copied into the run.

A role that restarts before the first checkpoint loads the copy, even if the other run is gone. A resumed run continues
from its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import save

from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.system import commit
from thespis.core.types import Array
from thespis.runs.checkpoints import Checkpoints, load_arrays, policy_weights
from thespis.runs.directory import RunDirectory

INITIAL_WEIGHTS_FILE = "initial.safetensors"
_LISTED = 8
"""Weights that a message lists individually."""


@dataclass(frozen=True)
class Initial:
    """Weights by name, and a note about them for the user."""

    weights: dict[str, Array]
    note: str

    def write(self, run: Path) -> None:
        """Write the weights into the run directory."""
        commit.commit_file(
            run / INITIAL_WEIGHTS_FILE, save({name: array.copy(order="C") for name, array in self.weights.items()})
        )


def read_initial_weights(cfg: Experiment) -> dict[str, Array]:
    """The weights that a role loads into its network; empty unless the run starts from another run's."""
    if cfg.init_from is None or cfg.run_dir is None:
        return {}
    if not cfg.run_dir.is_dir():
        raise ThespisError(
            f"the run directory {cfg.run_dir}, which holds the initial weights, is not visible on this node; "
            "give --run-dir a path that all nodes share"
        )
    # A copy of another run continues from a checkpoint and has no such file.
    return load_arrays(cfg.run_dir / INITIAL_WEIGHTS_FILE) if (cfg.run_dir / INITIAL_WEIGHTS_FILE).exists() else {}


def match(cfg: Experiment, network: Mapping[str, Array]) -> Initial:
    """The weights of `--init-from` that fit a network with these parameters."""
    checkpoint = _checkpoint(cfg)
    found = policy_weights(checkpoint)
    if found is None:
        raise ThespisError(f"--init-from {cfg.init_from}: {checkpoint.name} holds no weights; name another run")
    wanted = [name for name in {**network, **found} if _chosen(name, cfg.init_only)]
    fits = {name: found[name] for name in wanted if not _difference(name, found, network)}
    differ = [_difference(name, found, network) for name in wanted if name not in fits]
    if not fits or (differ and not cfg.init_only):
        have = ", ".join(_parts([*network, *found]))
        what = f"{_listed(differ)}" if differ else f"no weight has {' or '.join(cfg.init_only)} in its name"
        raise ThespisError(
            f"--init-from {cfg.init_from}: {what}; give --init-only with the parts to take, of {have}, "
            "or the other run's --env and --network.*"
        )
    note = f"starting from {len(fits)} of {len(network)} weights of {cfg.init_from} ({checkpoint.name})"
    if cfg.init_only:
        note += f": {', '.join(_parts(fits))}"
    return Initial(fits, note + (f"; not taken: {_listed(differ)}" if differ else ""))


def _checkpoint(cfg: Experiment) -> Path:
    """The verified checkpoint that `--init-from` names."""
    path = cfg.init_from
    assert path is not None
    if (path / commit.MANIFEST).exists():
        commit.verify(path)
        return path
    if not path.is_dir():
        raise ThespisError(f"--init-from {path}: there is no such directory; give a run, or one of its checkpoints")
    try:
        return Checkpoints(RunDirectory.open(path).checkpoints, keep=1).require(cfg.init_checkpoint)
    except ThespisError as error:
        raise ThespisError(f"--init-from {error}") from None


def _chosen(name: str, parts: tuple[str, ...]) -> bool:
    """Whether a component of the dotted name starts with one of `parts`; without parts, all are chosen."""
    return not parts or any(f".{part}" in f".{name}" for part in parts)


def _difference(name: str, there: Mapping[str, Array], here: Mapping[str, Array]) -> str:
    if name not in there:
        return f"{name} is only in this network"
    if name not in here:
        return f"{name} is only in the other run"
    if there[name].shape != here[name].shape:
        return f"{name} is {list(there[name].shape)} in the other run and {list(here[name].shape)} in this network"
    return ""


def _parts(names: Mapping[str, Array] | list[str]) -> list[str]:
    """The names that `--init-only` accepts: `encoder.torsos.0.mlp.layers.0.weight` is part of encoder and torsos."""
    words = [word for name in names for word in name.split(".")[:-1] if not word.isdigit()]
    return [word for word in dict.fromkeys(words) if word not in ("mlp", "layers", "cell")]


def _listed(differences: list[str]) -> str:
    more = len(differences) - _LISTED
    return ", ".join(differences[:_LISTED]) + (f" and {more} more" if more > 0 else "")
