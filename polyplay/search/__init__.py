"""Tree search for games of two players: many games at once in compiled arrays, evaluated by one network in batches."""

from polyplay.search.search import Finished, Search
from polyplay.search.tree import SearchOptions

__all__ = ["Finished", "Search", "SearchOptions"]
