"""Experience: writers cut it into items, replays store and sample them, sources make batches."""
