"""One file per architecture; each reads like its paper's figure."""

SHARED = ("evaluating", "parts", "serving", "values")
"""Modules that are no architectures but what several of them share."""
