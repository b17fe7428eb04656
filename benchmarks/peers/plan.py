"""The compared libraries and their settings, which come from each library's own examples, adapted to two cores.

All networks have the same size: two layers of 64 for CartPole, the CNN of Mnih et al. (2015) for Pong. A library has
several rows if the settings with the most steps per second are not the settings that learn fastest. Learning rates
anneal over more steps than in the zoo of Stable-Baselines3, because 100 episodes of 475 steps alone take 47,500.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CARTPOLE, PONG = "CartPole-v1", "ALE/Pong-v5"


@dataclass(frozen=True)
class Task:
    """The task of one run. `until`: the return to reach; `seconds`: the time limit."""

    name: str
    env: str
    seconds: float
    until: float | None = None


TASKS = (
    Task("speed", CARTPOLE, 20.0),
    Task("solve", CARTPOLE, 120.0, 475.0),
    Task("pong", PONG, 40.0),
)


@dataclass(frozen=True)
class Entry:
    """A row: the driver, its virtual environment (`venv`), and its settings; None for a task that is not compared.

    `steady`: further settings on CartPole, with which the run learns for the whole measured time.
    """

    name: str
    label: str
    venv: str
    driver: str
    algorithm: str = ""
    cartpole: dict[str, Any] | None = field(default_factory=dict)
    pong: dict[str, Any] | None = field(default_factory=dict)
    said: str = ""
    steady: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.venv == "thespis"

    def settings(self, task: Task) -> dict[str, Any] | None:
        if task.env != CARTPOLE:
            return self.pong
        if self.cartpole is None or task.until is not None:
            return self.cartpole
        return self.cartpole | self.steady


PACKAGES = {
    "thespis": ("thespis",),
    "appo": ("sample-factory",),
    "rllib": ("ray",),
    "sb3": ("stable-baselines3",),
    "cleanrl": (),
}
"""The compared packages of each virtual environment; all have torch, Gymnasium and numpy."""

_ZOO_PPO = {
    "n_envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
}
_ZOO_DQN = {
    "n_envs": 1,
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.04,
    "exploration_final_eps": 0.04,
    "total_timesteps": 200_000,
}
_APPO = {
    "num_workers": 2,
    "num_envs_per_worker": 32,
    "worker_num_splits": 2,
    "rollout": 32,
    "batch_size": 2048,
    "encoder_mlp_layers": [64, 64],
    "with_vtrace": False,
    "reward_scale": 0.1,
    "learning_rate": 1e-3,
}
_IMPALA = {
    "lr": 5e-4,
    "grad_clip": 40.0,
    "grad_clip_by": "global_norm",
    "vf_loss_coeff": 0.05,
    "entropy_coeff": 0.0,
    # With the default of 0 the driver polls for batches all the time, and takes a core from the sampling processes.
    "timeout_s_sampler_manager": 0.05,
}

_NATIVE = {"native": True, "n_steps": 32, "learning_rate": 2.5e-3, "epochs": 4, "minibatches": 4}

_CONSTANT = {"optimizer": {"learning_rate": 1e-3}}
"""A constant learning rate. The preset's is five times as high, and anneals to 0 within two seconds."""

ENTRIES = (
    Entry("impala", "Thespis IMPALA", "thespis", "ours", "impala", said="defaults", steady=_CONSTANT),
    Entry(
        "impala-1024",
        "Thespis IMPALA",
        "thespis",
        "ours",
        "impala",
        {"envs_per_actor": 1024, "total_steps": 8_000_000},
        None,
        "1,024 environments",
        _CONSTANT,
    ),
    Entry("ppo", "Thespis PPO", "thespis", "ours", "ppo", said="defaults"),
    Entry(
        "appo",
        "Sample Factory APPO",
        "appo",
        "appo",
        "",
        _APPO,
        {"num_workers": 2, "num_envs_per_worker": 8, "worker_num_splits": 2, "async_rl": True, "num_epochs": 1},
        "2 workers of 32 environments (Pong: 8), asynchronous",
    ),
    Entry(
        "rllib",
        "RLlib IMPALA",
        "rllib",
        "rllib",
        "",
        {
            "env_runners": {"num_env_runners": 1, "num_envs_per_env_runner": 32, "rollout_fragment_length": 20},
            "training": {**_IMPALA, "train_batch_size_per_learner": 640},
        },
        {
            "env_runners": {"num_env_runners": 1, "num_envs_per_env_runner": 16, "rollout_fragment_length": 20},
            "training": {**_IMPALA, "train_batch_size_per_learner": 640},
        },
        "1 runner of 32 environments (Pong: 16)",
    ),
    Entry(
        "sb3-a2c",
        "Stable-Baselines3 A2C",
        "sb3",
        "sb3",
        "A2C",
        {"n_envs": 8, "ent_coef": 0.0},
        {"n_envs": 16, "ent_coef": 0.01, "vf_coef": 0.25, "threads": 2},
        "the zoo's settings: 8 environments (Pong: 16)",
    ),
    Entry(
        "sb3-a2c-64",
        "Stable-Baselines3 A2C",
        "sb3",
        "sb3",
        "A2C",
        {"n_envs": 64, "n_steps": 16, "learning_rate": 2e-3, "ent_coef": 0.0},
        None,
        "64 environments, unrolls of 16",
    ),
    Entry(
        "sb3-ppo",
        "Stable-Baselines3 PPO",
        "sb3",
        "sb3",
        "PPO",
        {**_ZOO_PPO, "linear": ["learning_rate", "clip_range"], "total_timesteps": 200_000},
        {"n_envs": 8, "n_steps": 128, "n_epochs": 4, "batch_size": 256, "ent_coef": 0.01, "threads": 2},
        "the zoo's settings: 8 environments",
    ),
    Entry(
        "sb3-ppo-64",
        "Stable-Baselines3 PPO",
        "sb3",
        "sb3",
        "PPO",
        {**_ZOO_PPO, "n_envs": 64, "batch_size": 512, "n_epochs": 4, "gae_lambda": 0.95, "gamma": 0.99},
        None,
        "64 environments, 4 epochs",
    ),
    Entry(
        "sb3-dqn",
        "Stable-Baselines3 DQN",
        "sb3",
        "sb3",
        "DQN",
        _ZOO_DQN,
        {"n_envs": 8, "buffer_size": 20_000, "learning_starts": 1_000, "threads": 2},
        "the zoo's settings",
    ),
    Entry("cleanrl", "PPO as CleanRL writes it", "cleanrl", "cleanrl", "", said="its settings, 8 environments"),
    Entry(
        "cleanrl-native",
        "PPO as CleanRL writes it",
        "cleanrl",
        "cleanrl",
        "",
        {**_NATIVE, "n_envs": 64},
        {"native": True, "n_envs": 16, "threads": 2},
        "Gymnasium's native vectors, 64 environments (Pong: 16)",
    ),
    Entry(
        "cleanrl-native-512",
        "PPO as CleanRL writes it",
        "cleanrl",
        "cleanrl",
        "",
        {**_NATIVE, "n_envs": 512, "threads": 2},
        None,
        "Gymnasium's native vectors, 512 environments, 2 threads",
    ),
    Entry(
        "cleanrl-native-1024",
        "PPO as CleanRL writes it",
        "cleanrl",
        "cleanrl",
        "",
        {**_NATIVE, "n_envs": 1024, "threads": 2},
        None,
        "Gymnasium's native vectors, 1,024 environments, 2 threads",
    ),
    Entry(
        "cleanrl-native-2048",
        "PPO as CleanRL writes it",
        "cleanrl",
        "cleanrl",
        "",
        {**_NATIVE, "n_envs": 2048, "threads": 2},
        None,
        "Gymnasium's native vectors, 2,048 environments, 2 threads",
    ),
)
