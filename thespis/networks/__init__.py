"""Policies and value functions, and how an actor uses them."""
