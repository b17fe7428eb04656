"""Runs: launch, resume, load and evaluate."""
