"""What becomes of gradients between computing and applying them."""
