"""What performs a program."""
