"""How experience is cut into items, stored, and drawn from."""
