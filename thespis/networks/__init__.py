"""Policy and value networks, action distributions, and the runner with which an actor steps a policy."""
