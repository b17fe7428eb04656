"""The output of a run: its directory, checkpoints, metrics, progress display and summary."""
