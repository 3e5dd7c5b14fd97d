"""alpha-zero-general (suragnair) plays connect four against itself: its search and its game, one position at a time.

It has no PyTorch network for this game: it gets that of board_networks.py. Its tree stays between moves, and each move
has `--simulations` new ones, as its Coach.executeEpisode does. `np.int`, gone from NumPy, is back.
"""

from __future__ import annotations

import argparse
import sys

import board_counts
import numpy as np


def play(asked: argparse.Namespace, i: int, count: board_counts.Count) -> None:
    np.int = int  # type: ignore[attr-defined]
    sys.path.insert(0, asked.path)
    from board_networks import OneByOne
    from connect4.Connect4Game import Connect4Game
    from MCTS import MCTS
    from utils import dotdict

    class Net:
        network = OneByOne(1, asked.blocks, asked.filters)

        def predict(self, board: np.ndarray) -> tuple[np.ndarray, float]:
            count.add(evaluations=1)
            return self.network(board[None])

    np.random.seed(i)
    game, net = Connect4Game(), Net()
    while True:
        search = MCTS(game, net, dotdict({"numMCTSSims": asked.simulations, "cpuct": 1.25}))
        board, player, ply, over = game.getInitBoard(), 1, 0, 0
        while not over:
            ply += 1
            shares = search.getActionProb(game.getCanonicalForm(board, player), temp=int(ply < 15))
            board, player = game.getNextState(board, player, np.random.choice(len(shares), p=shares))
            over = game.getGameEnded(board, player)
            count.add(steps=asked.simulations, moves=1, games=bool(over))


if __name__ == "__main__":
    board_counts.run(play, board_counts.command_line(__doc__).parse_args())
