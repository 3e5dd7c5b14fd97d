"""Published Atari scores with their sources, human-normalised scores, aggregates with intervals. Imports no torch."""
