"""One file per architecture; each reads like its paper's figure."""

SHARED = ("builders", "demonstrations", "labelling", "sharding")
"""Modules that are no architectures but what several of them share."""

PAIRS = {
    "apex-dpg": ("apex", "dpg"),
    "appo": ("impala", "appo"),
    "r2d2": ("apex", "r2d2"),
    "sac": ("dqn", "sac"),
    "trpo": ("ppo", "trpo"),
}
"""Names that people type for an algorithm in the architecture it is usually trained with."""
