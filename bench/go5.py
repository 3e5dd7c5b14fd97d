"""Whether an agent has solved Go on 5×5, where Black can take the whole board: preset `go5`, komi 24.5.

    python bench/go5.py runs/go5 --games 20

The newest weights play Black, by the most visited move. White is a player of random moves, tree search by random
roll-outs, and the agent itself, whose first moves are drawn by their visits, so that games differ. With this komi Black
wins only with all 25 points.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict

from polyplay.acting.play import MatchStarts, load_player, match
from polyplay.core import checkpoint
from polyplay.evaluation.agent import find_agents
from polyplay.games.mcts import Opponent, opponent
from polyplay.search.evaluators import NetworkEvaluator
from polyplay.search.search import PositionSearch, SearchPolicy

DRAWN = 10  # plies in which the agent as White draws its moves


def itself(policy: SearchPolicy, games: int) -> Opponent:
    options = replace(policy.options, temperature=((0, 1.0), (DRAWN, 0.0)))
    evaluator = NetworkEvaluator(policy.factory, games * options.leaves)
    evaluator.load(policy.weights, 0)
    search = PositionSearch(policy.board, options, evaluator, games, seed=3)
    return lambda records, random, at: search.choose(records[at])


def policy_of(run: Path) -> SearchPolicy:
    """Its newest weights."""
    (agent,) = find_agents(str(run))
    policy = load_player(agent.wired, agent.weights)
    assert isinstance(policy, SearchPolicy)
    return policy


def games_taken(policy: SearchPolicy, games: int) -> dict[str, int]:
    """In how many of its games as Black it takes the whole board, by opponent."""
    board = policy.board
    black: Opponent = lambda records, random, at: policy.choose(records[at])[0]  # noqa: E731
    starts = MatchStarts(np.stack([board.new()] * games), np.ones(games, bool))
    others = {name: opponent(name, board) for name in ("random", "mcts:1000")} | {"itself": itself(policy, games)}
    return {name: int((match(board, black, white, starts, seed=1) == 1).sum()) for name, white in others.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--games", type=int, default=20, help="against each")
    parser.add_argument("--simulations", type=int, default=400, help="of each move")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy, n = policy_of(asked.run), asked.games
    policy.simulate(asked.simulations)
    taken, board = games_taken(policy, n), policy.board
    rows: list[Row] = [{"White": name, "games": n, "Black takes all 25 points in": k} for name, k in taken.items()]
    first, value = policy.choose(board.new()[None])
    policy.simulate(0)
    bare, raw = policy.choose(board.new()[None])
    counters = checkpoint.manifest(checkpoint.everything(asked.run)[-1])["counters"]
    what, hours = about(), 2 * counters["wall_seconds"] / 3600
    text = ["# Go on 5×5", "", *lines_about(what), ""]
    text += [f"`{asked.run.name}`, {counters['steps']:,} moves, {hours:.2f} core-hours,"]
    text += [f"{asked.simulations} simulations a move.", ""]
    text += [*table(rows), ""]
    text += [f"Black opens at {board.move_name(int(first[0]))}, and expects {value[0]:+.2f};"]
    text += [f"the bare network at {board.move_name(int(bare[0]))}, {raw[0]:+.2f}.", ""]
    least = min(taken.values())
    text += [verdict(f"games of {n} that Black wins against the worst of them", least, least=n)]
    publish(RESULTS / "go5", {**what, "counters": counters, "rows": rows, "first": int(first[0])}, text)


if __name__ == "__main__":
    main()
