"""Tree search for games of two players: many games at once in compiled arrays, asked of one network in batches."""

from polyplay.search.search import Evaluator, Finished, Search
from polyplay.search.tree import SearchOptions

__all__ = ["Evaluator", "Finished", "Search", "SearchOptions"]
