"""A slow plain Go: frozen dicts of stones, and every position of the game in a list."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polyplay.games import records
from polyplay.games.boards import KO, Go

Cell = tuple[int, int]
Stones = dict[Cell, int]


def beside(n: int, cell: Cell) -> list[Cell]:
    row, column = cell
    found = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [(r, c) for r, c in found if 0 <= r < n and 0 <= c < n]


def region(n: int, stones: Stones, cell: Cell) -> tuple[set[Cell], set[int]]:
    """The cells of the same content that hang together with one, and what they border on."""
    what, found, edge, todo = stones.get(cell, 0), {cell}, set[int](), [cell]
    while todo:
        for other in beside(n, todo.pop()):
            if stones.get(other, 0) != what:
                edge.add(stones.get(other, 0))
            elif other not in found:
                found.add(other)
                todo.append(other)
    return found, edge


def put(n: int, stones: Stones, cell: Cell, own: int) -> Stones:
    """The stones after a move: what it captures is gone, or else its own group, if that has no liberty."""
    now = {**stones, cell: own}
    for other in beside(n, cell):
        if now.get(other) == 3 - own:
            group, edge = region(n, now, other)
            if 0 not in edge:
                now = {k: v for k, v in now.items() if k not in group}
    group, edge = region(n, now, cell)
    return now if 0 in edge else {k: v for k, v in now.items() if k not in group}


def lead(n: int, stones: Stones) -> int:
    """The first player's area less the second's."""
    total = 0
    for row in range(n):
        for column in range(n):
            what = stones.get((row, column), 0)
            edge = {what} if what else region(n, stones, (row, column))[1]
            total += 1 if edge == {1} else -1 if edge == {2} else 0
    return total


@dataclass
class PlainGo:
    game: Go
    stones: Stones = field(default_factory=dict)
    past: list[tuple[Stones, int]] = field(default_factory=list)  # stones and mover, of all positions before
    passes: int = 0

    @property
    def own(self) -> int:
        return len(self.past) % 2 + 1

    def legal(self) -> list[int]:
        n = self.game.rows
        cells = [(i // n, i % n) for i in range(n * n)]
        return [i for i, cell in enumerate(cells) if self._legal(cell)] + [n * n]

    def _legal(self, cell: Cell) -> bool:
        if cell in self.stones:
            return False
        after = put(self.game.rows, self.stones, cell, self.own)
        if cell not in after and (not self.game.suicide or after == self.stones):
            return False
        past = [*self.past, (self.stones, self.own)]
        if KO[self.game.ko] == "simple":
            return len(past) < 2 or past[-2][0] != after
        if KO[self.game.ko] == "situational":
            return (after, 3 - self.own) not in past
        return all(stones != after for stones, _ in past)

    def play(self, action: int) -> int:
        n, own = self.game.rows, self.own
        self.past.append((self.stones, own))
        if action == n * n:
            self.passes += 1
        else:
            self.passes, self.stones = 0, put(n, self.stones, divmod(action, n), own)
        if self.passes < 2 and len(self.past) < 2 * n * n:
            return records.GOES_ON
        points = 2 * lead(n, self.stones) - self.game.halves
        first = records.DRAWN if points == 0 else records.WON if points > 0 else records.LOST
        return first if own == 1 else {records.WON: records.LOST, records.LOST: records.WON}.get(first, first)

    def cells(self, stones: Stones) -> np.ndarray:
        board = np.zeros((self.game.rows, self.game.rows), np.int8)
        for cell, own in stones.items():
            board[cell] = own
        return board

    def planes(self) -> np.ndarray:
        shown = [self.stones, *(stones for stones, _ in reversed(self.past))][:8]
        boards = [self.cells(stones) for stones in shown]
        boards += [np.zeros_like(boards[0])] * (8 - len(boards))
        both = [plane for board in boards for plane in (board == self.own, board == 3 - self.own)]
        return np.stack([*both, np.full_like(both[0], self.own == 1)]).astype(np.float32)
