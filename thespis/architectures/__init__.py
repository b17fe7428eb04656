"""One file per architecture; each reads like its paper's figure."""

SHARED = ("builders", "demonstrations", "labelling", "sharding")
"""Modules that are no architectures but what several of them share."""
