"""Matches between weights of agents, ratings, and populations whose members copy each other."""
