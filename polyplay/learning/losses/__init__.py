"""Losses, and the targets that they learn towards: pure functions of rows."""
