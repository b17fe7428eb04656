"""Losses and targets as pure functions on tensors, and the updates that use them."""
