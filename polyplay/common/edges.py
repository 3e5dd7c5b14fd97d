"""What crosses between workers, as the crew, the diagram and the plan see it: they ask this, and know no class."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Protocol

# how a role holds an edge: it writes into it, takes from it, publishes weights or reads them, updates through it, or
# serves it; of a league: it seats players, makes past selves, or rates
End = Literal["out", "source", "publish", "params", "update", "server", "plays", "posts", "rates"]


class Arrow(NamedTuple):
    """A line of the diagram: from roles that hold the edge by one of `givers` to those that do by one of `takers`."""

    label: str
    givers: tuple[End, ...]
    takers: tuple[End, ...]


class Edge(Protocol):
    memory: ClassVar[str]  # the part of the memory estimate that it counts in
    patience: float  # seconds a wait lasts before it answers "nothing yet"; 0 when all run in one thread

    @property
    def nbytes(self) -> int: ...  # of shared memory
    def label(self) -> str: ...
    def arrows(self) -> list[Arrow]: ...
    def close(self) -> None: ...  # every wait, now and later, raises Closed


class Source(Protocol):
    """What a learner, or a worker that holds a replay, takes from."""

    @property
    def edge(self) -> Edge: ...
    def describe(self) -> list[str]: ...  # a line each for the diagram
