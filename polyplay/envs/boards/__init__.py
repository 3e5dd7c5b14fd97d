"""Board games: compiled rules on records of fixed size."""
