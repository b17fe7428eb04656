"""How gradients take effect: applied locally, pushed to a parameter server, or written to shared memory."""
