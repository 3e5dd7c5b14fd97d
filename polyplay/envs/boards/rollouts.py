"""Monte Carlo tree search by random roll-outs (UCT, Kocsis and Szepesvári 2006), and random numbers for compiled games.

A random stream is one uint64 of an array: its place in SplitMix64's sequence (Steele et al. 2014), which moves on as
numbers are drawn. So whoever saves the array goes on to the bit.
"""

from __future__ import annotations

import math

import numpy as np

from polyplay.envs.boards.kernels import DRAWN, GOES_ON, WON, compiled, legal, play

EXPLORATION = 1.4  # UCT's constant, for values in [0, 1]
_A, _B, _C = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_27, _30, _31, _32 = (np.uint64(x) for x in (27, 30, 31, 32))


@compiled
def integer_below(random: np.ndarray, stream: int, limit: int) -> int:
    """An integer in [0, limit), limit < 2³¹, from stream `stream` of random, uint64 [n]."""
    random[stream] += _A
    x = random[stream]
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    x ^= x >> _31
    return int(((x >> _32) * np.uint64(limit)) >> _32)


@compiled
def random_move(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray, stream: int) -> int:
    """A legal action, each with the same chance. moves: room, int16 [actions]."""
    n = legal(game, record, moves)
    return int(moves[integer_below(random, stream, n)])


@compiled
def _roll_out(game: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray, stream: int) -> float:
    """Play the record to its end at random: 1 if who moves first here wins, 0 if the other does, 0.5 drawn."""
    first = record[0]
    while True:
        own = record[0]
        result = play(game, record, random_move(game, record, moves, random, stream))
        if result == DRAWN:
            return 0.5
        if result != GOES_ON:
            return 1.0 if (own == first) == (result == WON) else 0.0


@compiled
def _unvisited(child: np.ndarray, moves: np.ndarray, n: int) -> int:
    """Put the legal moves that were not tried first, by swapping; their number."""
    new = 0
    for i in range(n):
        if child[moves[i]] < 0:
            moves[new], moves[i] = moves[i], moves[new]
            new += 1
    return new


@compiled
def _best(child: np.ndarray, visits: np.ndarray, values: np.ndarray, parent: float, moves: np.ndarray, n: int) -> int:
    """The legal move of the greatest upper confidence bound; all were tried."""
    best, top = int(moves[0]), -1.0
    for i in range(n):
        node = child[moves[i]]
        bound = values[node] / visits[node] + EXPLORATION * math.sqrt(math.log(parent) / visits[node])
        if bound > top:
            best, top = int(moves[i]), bound
    return best


@compiled
def _simulate(
    game: np.ndarray,
    record: np.ndarray,
    tree: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    path: np.ndarray,
    moves: np.ndarray,
    random: np.ndarray,
    stream: int,
    new: int,
) -> bool:
    """One descent, one new node at most, one roll-out; whether node `new` was made."""
    child, visits, values, results = tree
    node, depth, made = 0, 1, False
    while results[node] == GOES_ON and not made:
        n = legal(game, record, moves)
        untried = _unvisited(child[node], moves, n)
        if untried:
            action, made = int(moves[integer_below(random, stream, untried)]), True
            child[node, action] = new
            node = new
            results[node] = play(game, record, action)
        else:
            action = _best(child[node], visits, values, visits[node], moves, n)
            node = child[node, action]
            play(game, record, action)
        path[depth] = node
        depth += 1
    if results[node] == GOES_ON:
        value = 1.0 - _roll_out(game, record, moves, random, stream)
    else:
        value = 1.0 if results[node] == WON else 0.5 if results[node] == DRAWN else 0.0
    for i in range(depth - 1, -1, -1):  # value: of who moved into the node
        visits[path[i]] += 1.0
        values[path[i]] += value
        value = 1.0 - value
    return made


@compiled
def mcts(
    game: np.ndarray, record: np.ndarray, simulations: int, actions: int, random: np.ndarray, stream: int
) -> np.ndarray:
    """Visits int64 [actions] of the root's moves after so many simulations from a position that goes on."""
    nodes = simulations + 1
    child = np.full((nodes, actions), -1, np.int32)
    visits, values, results = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes, np.int8)
    path, moves, scratch = np.zeros(nodes + 1, np.int32), np.zeros(actions, np.int16), record.copy()
    used = 1
    for _ in range(simulations):
        scratch[:] = record
        tree = (child, visits, values, results)
        if _simulate(game, scratch, tree, path, moves, random, stream, used):
            used += 1
    out = np.zeros(actions, np.int64)
    for action in range(actions):
        if child[0, action] >= 0:
            out[action] = int(visits[child[0, action]])
    return out


@compiled
def most_visited(visits: np.ndarray, random: np.ndarray, stream: int) -> int:
    """The action of the most visits, one of equals by chance."""
    top, ties, chosen = visits.max(), 0, 0
    for action in range(visits.size):
        if visits[action] == top:
            ties += 1
            if integer_below(random, stream, ties) == 0:
                chosen = action
    return chosen
