"""Capture the flag: random maps and shortest paths.

Compiled functions draw maps from a key. The same key always gives the same map.

In this module, a map is a flat array `wall`, uint8 [N · N]. Cell [r, c] has index r · N + c. A map does not change if
it is rotated by 180°. The rotation turns cell k into cell N · N - 1 - k, so every write to a cell is repeated at that
cell. Rooms and corridors lie on a lattice of K × K nodes, where K = (N - 1) / 2. Node [i, j] has index i · K + j and is
cell [2i + 1, 2j + 1].
"""

from __future__ import annotations

import numpy as np

from polyplay.core.compiled import bits, compiled
from polyplay.core.numbers import SPLITMIX
from polyplay.games.ctf_rules import RADIUS, WALL, clear

DRAWS = 1000  # most attempts per key; most maps take one or two, 9 × 9 rooms eight and rarely eighty
OPEN, ROOMS = (8, 20), (20, 40)  # least and most percent of inner cells that are wall
NEAR = 2  # a team of n players starts within n + NEAR moves of its base


@compiled
def draw_map(key: np.uint64, rooms: bool, grid: np.ndarray, base: np.ndarray, spawn: np.ndarray) -> None:
    """Draw a random map of capture the flag.

    Every free cell can be reached from each base. The bases are at least N moves apart. Two paths connect the bases and
    share no other cell.

    `rooms`: True for rooms and corridors, False for open ground with few walls.
    `grid`: output for the cells, uint8 [N, N].
    `base`: output for the positions of the two bases, float64 [2, 2].
    `spawn`: output for the starting points of P seats (players), float64 [P, 2].
    """
    N, n = len(grid), len(spawn) // 2
    state = np.full(1, np.uint64(key))
    state[0] = _random(state)  # so that consecutive keys do not share random numbers
    wall = grid.reshape(-1)
    order, moves = np.empty(N * N, np.int64), np.empty(N * N, np.int64)
    for draw in range(DRAWS + 1):
        if draw == DRAWS:
            home = _empty(wall, N)
        else:
            home = _draw_rooms(state, wall, N) if rooms else _draw_open(state, wall, N)
        if home < 0:
            continue
        _fill_dead_ends(wall, N, home)
        reached = flood(grid, home, moves, order)
        good = draw == DRAWS or _is_good(grid, n, home, rooms, order[:reached], moves)
        if good and _choose_spawns(state, N, order[:reached], moves, spawn):
            break
    wall[:] = moves < 0
    _write_center(N, home, base[0])
    base[1] = N - base[0]
    if _below(state, 2):  # swap teams at random, because floods prefer one side of a base
        base[:], spawn[:] = N - base, N - spawn


@compiled
def _random(state: np.ndarray) -> np.uint64:
    """Advance the state, uint64 [1], and return the next random number by SplitMix64 (Steele et al. 2014)."""
    state[0] += SPLITMIX
    return bits(state[0], np.uint64(0))


@compiled
def _below(state: np.ndarray, n: int) -> int:
    return int(np.int64(_random(state) % np.uint64(n)))  # signed, because Numba adds int64 and uint64 as floats


@compiled
def _write_center(N: int, cell: int, out: np.ndarray) -> None:
    out[0], out[1] = cell % N + 0.5, cell // N + 0.5


@compiled
def _write(wall: np.ndarray, cell: int, value: int) -> None:
    wall[cell] = wall[len(wall) - 1 - cell] = value


@compiled
def _from_middle(N: int, row: int, column: int) -> int:
    return abs(row - N // 2) + abs(column - N // 2)


@compiled
def _empty(wall: np.ndarray, N: int) -> int:
    """Clear the map except for walls at the border. Return the cell of base 0."""
    wall[:] = 1
    wall.reshape(N, N)[1:-1, 1:-1] = 0
    return N + 1


@compiled
def _draw_open(state: np.ndarray, wall: np.ndarray, N: int) -> int:
    """Draw pillars and short walls on open ground. Return the cell of base 0."""
    _empty(wall, N)
    inner, row, column = (N - 2) ** 2, N // 2, N // 2
    while _from_middle(N, row, column) <= N // 2:
        row, column = 1 + _below(state, N - 2), 1 + _below(state, N - 2)
    left = inner * (10 + _below(state, OPEN[1] - 9)) // 100  # number of cells that may still become wall
    for _ in range(inner):
        height = width = 1 + (_below(state, 4) == 0)  # a pillar, of one or four cells
        if _below(state, 3) > 0:
            length, upright = 2 + _below(state, 3), _below(state, 2) == 0
            height, width = (length, 1) if upright else (1, length)
        top, start = 1 + _below(state, N - 1 - height), 1 + _below(state, N - 1 - width)
        by_base = top - 1 <= row <= top + height and start - 1 <= column <= start + width
        whole = _below(state, 12) > 0
        if 2 * height * width > left or by_base or (whole and _touches(wall, N, top, start, height, width)):
            continue
        for r in range(top, top + height):
            for c in range(start, start + width):
                left -= 2 * (wall[r * N + c] == 0)
                _write(wall, r * N + c, 1)
    return row * N + column


@compiled
def _touches(wall: np.ndarray, N: int, top: int, start: int, height: int, width: int) -> bool:
    """Tell whether a block of cells touches an inner wall, or the block's copy after the map's rotation."""
    for r in range(max(top - 1, 1), min(top + height + 1, N - 1)):
        for c in range(max(start - 1, 1), min(start + width + 1, N - 1)):
            turned_r, turned_c = N - 1 - r, N - 1 - c
            if wall[r * N + c] or (top <= turned_r < top + height and start <= turned_c < start + width):
                return True
    return False


@compiled
def _draw_rooms(state: np.ndarray, wall: np.ndarray, N: int) -> int:
    """Draw rooms, doorways and corridors. Return the cell of base 0, or -1 if no room fits."""
    K, home, wide = N // 2, -1, 3 if N > 20 else 2  # sides of rooms: 2 to wide + 1 nodes
    room, root = np.zeros(K * K, np.bool_), np.arange(K * K)
    left = K * K // 16 + _below(state, K * K // 8)  # number of pairs of rooms still to make
    wall[:] = 1
    for _ in range(K * K // 2 + 16):
        if left == 0:
            break
        height, width = 2 + _below(state, wide), 2 + _below(state, wide)
        if height >= K or width >= K:
            continue
        top, start = _below(state, K + 1 - height), _below(state, K + 1 - width)
        row, column = 2 * top + 1 + _below(state, 2 * height - 1), 2 * start + 1 + _below(state, 2 * width - 1)
        if home < 0 and _from_middle(N, row, column) < N // 2:  # base 0 is in the first room, far from the middle
            continue
        if _add_room(wall, N, room, root, top, start, height, width):
            home = row * N + column if home < 0 else home
            left -= 1
    if home >= 0:
        _dig_corridors(state, wall, N, room, root)
    return home


@compiled
def _add_room(
    wall: np.ndarray, N: int, room: np.ndarray, root: np.ndarray, top: int, start: int, height: int, width: int
) -> bool:
    """Make a room of height × width nodes, unless another room is in the way. Return whether the room was made.

    `room`: whether each node is in a room, bool [K · K].
    `root`: see _find.
    """
    K = N // 2
    down, right = K - height - 2 * top, K - width - 2 * start  # offset to the room's rotated image
    if abs(down) < height and abs(right) < width and (down != 0 or right != 0):
        return False
    if room.reshape(K, K)[top : top + height, start : start + width].any():
        return False
    for i in range(top, top + height):
        for j in range(start, start + width):
            node = i * K + j
            room[node] = room[K * K - 1 - node] = True
            _join(root, node, top * K + start)
    for r in range(2 * top + 1, 2 * (top + height)):
        for c in range(2 * start + 1, 2 * (start + width)):
            _write(wall, r * N + c, 0)
    return True


@compiled
def _find(root: np.ndarray, node: int) -> int:
    """Return the representative of all nodes connected to `node` (union-find). `root`: parent of each node."""
    while root[node] != node:
        root[node] = root[root[node]]
        node = root[node]
    return node


@compiled
def _join(root: np.ndarray, a: int, b: int) -> None:
    last = len(root) - 1
    root[_find(root, a)] = _find(root, b)
    root[_find(root, last - a)] = _find(root, last - b)


@compiled
def _dig_corridors(state: np.ndarray, wall: np.ndarray, N: int, room: np.ndarray, root: np.ndarray) -> None:
    """Connect all nodes by corridors and doorways in random order (Kruskal 1956). Add some extra doorways, and open
    most of the dead ends.
    """
    K = N // 2
    for node in range(K * K):
        wall[_cell_of(N, node)] = 0
    edges = np.arange(2 * K * K)  # two edges per node: to the right, and downward
    for last in range(len(edges) - 1, 0, -1):
        swap = _below(state, last + 1)
        edges[last], edges[swap] = edges[swap], edges[last]
    for edge in edges:
        node, downwards = int(edge // 2), edge % 2
        if (node // K if downwards else node % K) == K - 1:
            continue
        other = node + (K if downwards else 1)
        if _find(root, node) != _find(root, other) or ((room[node] or room[other]) and _below(state, 10) == 0):
            _join(root, node, other)
            _write(wall, _cell_of(N, node) + (N if downwards else 1), 0)
    for node in range(K * K):
        if _walls_beside(wall, N, _cell_of(N, node)) == 3 and _below(state, 4) > 0:
            _lead_on(state, wall, N, _cell_of(N, node))


@compiled
def _cell_of(N: int, node: int) -> int:
    K = N // 2
    return (2 * (node // K) + 1) * N + 2 * (node % K) + 1


@compiled
def _lead_on(state: np.ndarray, wall: np.ndarray, N: int, cell: int) -> None:
    """Open a random wall beside a dead end, but no wall at the map's border."""
    first = _below(state, 4)
    for k in range(4):
        side = cell + (-N, -1, 1, N)[(first + k) % 4]
        if wall[side] and 0 < side // N < N - 1 and 0 < side % N < N - 1:
            _write(wall, side, 0)
            return


@compiled
def _walls_beside(wall: np.ndarray, N: int, cell: int) -> int:
    return wall[cell - N] + wall[cell - 1] + wall[cell + 1] + wall[cell + N]


@compiled
def _fill_dead_ends(wall: np.ndarray, N: int, home: int) -> None:
    """Turn dead ends into wall until none is left. Bases stay free."""
    for first in range(N, N * N - N):
        cell = first
        while wall[cell] == 0 and cell not in (home, N * N - 1 - home) and _walls_beside(wall, N, cell) >= 3:
            wall[cell] = 1
            for step in (-N, -1, 1, N):
                if wall[cell + step] == 0:
                    cell += step
                    break


@compiled
def _is_good(grid: np.ndarray, n: int, home: int, rooms: bool, near: np.ndarray, moves: np.ndarray) -> bool:
    """Tell whether a map has enough wall, free cells near each base, bases far apart, and two paths between the bases.
    Cells that can't be reached count as wall. `near`: cells reached from base 0, nearest first.
    """
    N, reached = len(grid), len(near)
    inner, (least, most) = (N - 2) ** 2, ROOMS if rooms else OPEN
    if not least * inner <= 100 * (inner - reached) <= most * inner:
        return False
    if moves[N * N - 1 - home] < N or reached < 2 * n + 1 or moves[near[2 * n]] > n + NEAR:
        return False
    return _has_two_ways(grid, home, moves)


@compiled
def _has_two_ways(grid: np.ndarray, home: int, moves: np.ndarray) -> bool:
    """Tell whether the bases stay connected if any one cell between them becomes wall."""
    N, wall = len(grid), grid.reshape(-1)
    around, order, other = np.empty_like(moves), np.empty_like(moves), N * N - 1 - home
    cell = next_cell(N, moves, other)
    while cell != home:
        wall[cell] = 1
        flood(grid, home, around, order)
        wall[cell] = 0
        if around[other] < 0:
            return False
        cell = next_cell(N, moves, cell)
    return True


@compiled
def _choose_spawns(state: np.ndarray, N: int, near: np.ndarray, moves: np.ndarray, spawn: np.ndarray) -> bool:
    """Choose starting points for the n players of each team at random. The candidates are the 2n cells nearest to the
    base of the team, without cells that are at least as near to the other base. Return False if fewer than n cells
    remain. `near`: cells reached from base 0, nearest first.
    """
    n = len(spawn) // 2
    cells = near[1 : 2 * n + 1]
    cells = cells[moves[cells] < moves[N * N - 1 - cells]]
    if len(cells) < n:
        return False
    for seat in range(n):
        other = seat + _below(state, len(cells) - seat)
        cells[seat], cells[other] = cells[other], cells[seat]
        _write_center(N, cells[seat], spawn[seat])
        spawn[n + seat] = N - spawn[seat]
    return True


AHEAD = 6  # most moves of a path that a straight walk replaces


@compiled
def flood(grid: np.ndarray, target: int, moves: np.ndarray, order: np.ndarray) -> int:
    """Compute shortest paths from all cells to the free cell `target`. Return the number of cells that have a path.

    `moves`: output for the length of each cell's path, or -1 for a cell without a path, int64 [N · N].
    `order`: output for the cells with a path, nearest first, int64 [N · N].
    """
    N, wall = len(grid), grid.reshape(-1)
    moves[:] = -1
    moves[target], order[0], n, k = 0, target, 1, 0
    while k < n:
        cell = order[k]
        for side in (cell - N, cell - 1, cell + 1, cell + N):
            if wall[side] != WALL and moves[side] < 0:
                moves[side] = moves[cell] + 1
                order[n] = side
                n += 1
        k += 1
    return n


@compiled
def next_cell(N: int, moves: np.ndarray, cell: int) -> int:
    """Return the cell after `cell` on a shortest path, or `cell` itself if no cell follows. `moves`: see flood."""
    if moves[cell] > 0:
        for side in (cell - N, cell - 1, cell + 1, cell + N):
            if moves[side] == moves[cell] - 1:
                return side
    return cell


@compiled
def walks_straight(grid: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Tell whether a body can walk from (x, y) to (to_x, to_y) in a straight line."""
    for dx in (-RADIUS, RADIUS):  # the body's corners are enough, because no wall is smaller than a body
        for dy in (-RADIUS, RADIUS):
            if not clear(grid, x + dx, y + dy, to_x + dx, to_y + dy):
                return False
    return True


@compiled
def waypoint(grid: np.ndarray, moves: np.ndarray, x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Return the next point to walk to on a shortest path from (x, y) to (to_x, to_y): the farthest one that a body
    reaches in a straight line. `moves` is the output of `flood` for the target.
    """
    N = len(grid)
    cell = int(y) * N + int(x)
    found = to_x, to_y
    for ahead in range(min(moves[cell], AHEAD)):
        cell = next_cell(N, moves, cell)
        at_x, at_y = (cell % N + 0.5, cell // N + 0.5) if moves[cell] else (to_x, to_y)
        if ahead and not walks_straight(grid, x, y, at_x, at_y):
            break
        found = at_x, at_y
    return found
