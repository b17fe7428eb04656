"""Training runs: launch, resume, load and evaluate them."""
