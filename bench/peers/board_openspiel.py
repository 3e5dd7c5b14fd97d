"""OpenSpiel's AlphaZero in Python plays a board game against itself: its actors' search, evaluator and network.

Its actors' loop without files and queues. Its wheel has no C++ AlphaZero: that needs LibTorch and a build from source.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import board_counts
import numpy as np

BOARDS = {"game:connect_four": "connect_four", "game:go+size=9": "go(board_size=9,komi=7.5)"}


def play(asked: argparse.Namespace, i: int, count: board_counts.Count) -> None:
    import pyspiel
    from open_spiel.python.algorithms import mcts
    from open_spiel.python.algorithms.alpha_zero import evaluator, utils

    game = pyspiel.load_game(BOARDS[asked.board])
    shape, actions = game.observation_tensor_shape(), game.num_distinct_actions()
    model = utils.api_selector(asked.api).Model.build_model(
        "resnet", shape, actions, asked.filters, asked.blocks, 1e-4, 1e-3, tempfile.mkdtemp()
    )

    class Counted:
        """The model, its evaluations counted."""

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def inference(self, *given: Any) -> Any:
            count.add(evaluations=1)
            return model.inference(*given)

    class Bot(mcts.MCTSBot):
        def _apply_tree_policy(self, *given: Any) -> Any:
            count.add(steps=1)
            return super()._apply_tree_policy(*given)

    bot = Bot(
        game,
        1.25,
        asked.simulations,
        evaluator.AlphaZeroEvaluator(game, Counted()),
        solve=False,
        dirichlet_noise=(0.25, 1.0),
        child_selection_fn=mcts.SearchNode.puct_value,
        dont_return_chance_node=True,
    )
    np.random.seed(i)
    while True:
        state, ply = game.new_initial_state(), 0
        while not state.is_terminal():
            root = bot.mcts_search(state)
            visits = np.zeros(actions)
            for child in root.children:
                visits[child.action] = child.explore_count
            best = root.best_child().action
            state.apply_action(best if ply >= 12 else int(np.random.choice(actions, p=visits / visits.sum())))
            ply += 1
            count.add(moves=1, games=state.is_terminal())


if __name__ == "__main__":
    parser = board_counts.command_line(__doc__)
    parser.add_argument("--board", choices=BOARDS, default="game:connect_four")
    parser.add_argument("--api", choices=["nnx", "linen"], default="nnx")
    board_counts.run(play, parser.parse_args())
