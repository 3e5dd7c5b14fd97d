"""How many workers of each kind are best, found while a run goes on."""
