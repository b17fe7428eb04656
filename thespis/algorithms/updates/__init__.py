"""The maths of learning: pure functions on tensors, and the updates made of them."""
