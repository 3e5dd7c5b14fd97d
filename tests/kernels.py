"""Uses the compiled loops of a part of the package once, so that they are compiled: `python -m tests.kernels PART`."""

from __future__ import annotations

import sys
from contextlib import closing

import numpy as np

from polyplay.acting.play import MatchStarts, match
from polyplay.buffers.replay import Proportional, Replay
from polyplay.core.tree import Field
from polyplay.envs import Envs
from polyplay.envs.lane import load_bot, seat_bot
from polyplay.envs.spaces import action_sampler
from polyplay.games.board_pool import opponent
from polyplay.games.boards import GAMES, game
from polyplay.search import Search, SearchOptions
from tests.search.twins import UniformEvaluator

ROW = {"action": "int64", "reward": "float32", "first": "bool", "terminated": "bool", "truncated": "bool"}


def play(title: str, bot: str = "") -> None:
    envs = Envs(title, 8)
    with closing(envs.open(0)) as pool:
        draw = action_sampler(envs.spec.action, 0)
        for _ in range(4):
            lanes, row = pool.recv()
            pool.send(lanes, draw(8, row.get("mask")))
        if bot:
            pool.picture(0)
            seat_bot(load_bot(envs.spec, bot), pool, slice(0, 4))


def arenas() -> None:
    play("arena:ctf+size=9", "level5")
    play("arena:ctf+size=9+actions=small", "returner")
    play("arena:moba+team=2+lanes=1", "level4")


def boards() -> None:
    for title in ("connect_four+opponent=mcts:4", "othello+size=4", "go+size=3"):
        play(f"game:{title}")
    for name, more in (
        ("connect_four", {"noise": 0.25, "leaves": 2}),
        ("go+size=3", {"root": "gumbel", "gumbel_actions": 4}),
    ):
        board = game(name)
        search = Search(board, 2, SearchOptions(8, **more), UniformEvaluator(board.actions))  # type: ignore[arg-type]
        search.restart()
        while not len((done := search.step()).games):
            pass
        search.targets(done)
        search.advance(done.games, search.choose(done))
    three = GAMES["tic_tac_toe"]
    random = opponent("random", three)
    match(three, random, random, MatchStarts(three.new()[None], np.ones(1, bool)))


def replay() -> None:
    spec = {"obs": Field((4, 2, 2), "uint8"), "version": Field((), "int64")} | {k: Field((), d) for k, d in ROW.items()}
    rows = {name: np.zeros((12, 2, *field.shape), field.dtype) for name, field in spec.items()}
    rows["first"][0] = True
    for sampler, stack in ((None, 0), (Proportional(), 4)):
        buffer = Replay(spec, 2, 64, batch=4, n_step=3, gamma=0.9, stack=stack, sampler=sampler).open(0)
        buffer.add(rows, np.arange(2))
        buffer.update_priorities(buffer.sample()["id"], np.ones(4))


if __name__ == "__main__":
    for part in sys.argv[1:]:
        {"arenas": arenas, "boards": boards, "replay": replay}[part]()
