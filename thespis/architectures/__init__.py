"""Architectures: one file each, which reads like the paper's figure."""

SHARED = ("builders", "parts", "sharding")
"""Modules of this package that are not architectures, but shared builders."""

USUAL_PAIRS = {
    "apex-dpg": ("apex", "dpg"),
    "appo": ("impala", "appo"),
    "r2d2": ("apex", "r2d2"),
    "sac": ("dqn", "sac"),
    "trpo": ("ppo", "trpo"),
}
"""Short names for an algorithm in its usual architecture."""
