"""Everything a run writes and shows: its directory, checkpoints, metrics, progress and summary."""
