"""Scores: full games by a protocol, played again to be sure, beside published ones."""
