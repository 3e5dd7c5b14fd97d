"""Run on several machines: a process on each other machine starts workers, and a connection carries shared data."""
