"""How the roles behind `builders.py` are built. A reader of an architecture need not open these modules."""
