"""Scores: full games by a protocol, verification, published scores, tournaments."""
