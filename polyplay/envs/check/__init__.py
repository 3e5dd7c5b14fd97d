"""Whether an environment keeps to the rules, and how fast it is."""
