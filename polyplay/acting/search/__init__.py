"""Tree search for games of two players: many games at once in compiled arrays, asked of one network in batches."""

from polyplay.acting.search.search import Evaluator, Finished, Search
from polyplay.acting.search.tree import SearchOptions

__all__ = ["Evaluator", "Finished", "Search", "SearchOptions"]
