"""LightZero's AlphaZero plays connect four against itself: its Python tree and its environment, one position at a time.

Its C++ tree takes no connect four. The environment is that of a checkout (`--path`), since its wheel has none; the tree
is the installed one. The policy's function is LightZero's, with the network of board_networks.py.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import board_counts
import numpy as np


def play(asked: argparse.Namespace, i: int, count: board_counts.Count) -> None:
    import zoo.board_games
    from lzero.mcts.ptree.ptree_az import MCTS  # before the checkout is found: it has none of the compiled modules

    zoo.board_games.__path__.insert(0, f"{asked.path}/zoo/board_games")
    from board_networks import OneByOne
    from easydict import EasyDict
    from zoo.board_games.connect4.envs.connect4_env import Connect4Env

    network = OneByOne(3, asked.blocks, asked.filters)

    def evaluate(env: Any) -> tuple[dict[int, float], float]:
        count.add(evaluations=1)
        shares, value = network(env.current_state()[1])
        legal = env.legal_actions
        return dict(zip(legal, shares[legal], strict=True)), value

    np.random.seed(i)
    config = EasyDict(Connect4Env.default_config() | {"channel_last": False, "scale": True})
    env, inner = Connect4Env(config), Connect4Env(config)
    search = MCTS(EasyDict(num_simulations=asked.simulations, root_dirichlet_alpha=1.0), inner)
    while True:
        env.reset()
        over = False
        while not over:
            start = {"start_player_index": env.current_player_index, "init_state": np.array(env.board)}
            action, _ = search.get_next_action(start, evaluate, temperature=1.0, sample=True)
            over = bool(env.step(action).done)
            count.add(steps=asked.simulations, moves=1, games=over)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    board_counts.run(play, board_counts.command_line(__doc__).parse_args())
