"""Several machines: a crew on each other machine starts workers, and a line (connection) carries the shared data."""
