"""`polyplay bench`: how fast this machine could be, how fast each system is, and where the rest goes."""

SCHEMA = 1  # of its JSON document
