"""From settings to a finished run, and what can be done with it: launch, resume, load, evaluate."""
