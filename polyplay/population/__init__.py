"""Matches between agents' weights, ratings, and populations whose members copy each other."""
