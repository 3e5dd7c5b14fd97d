"""The compiled search against mctx's, where it is installed, with the formulas that both have: AlphaZero's exploration
term, values that are not rescaled, 0 for moves that were not tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyplay.acting.search import Search, SearchOptions
from polyplay.envs.boards import kernels
from polyplay.envs.boards.game import GAMES, Game
from polyplay.envs.boards.positions import random_play
from tests.acting.search.twins import Stub

POSITIONS, SIMULATIONS = 50, 60


def positions(game: Game, most: int) -> np.ndarray:
    """Of random play of 0 to `most` plies, int8 [POSITIONS, record]."""
    rng, found = np.random.default_rng(3), list[np.ndarray]()
    while len(found) < POSITIONS:
        played = random_play(game, int(rng.integers(most + 1)), rng)
        found += [played[1]] if played else []
    return np.stack(found)


class Answers:
    """Rules and stub as mctx asks for them: of many positions at once, from NumPy."""

    def __init__(self, game: Game):
        self.game, self.stub = game, Stub(game)

    def look(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits, the least float for illegal moves, and values."""
        planes = np.zeros((len(records), *self.game.planes), np.float32)
        logits = np.full((len(records), self.game.actions), np.finfo(np.float32).min)
        room = np.zeros(self.game.actions, np.int16)
        for record, view in zip(records, planes, strict=True):
            kernels.write_planes(self.game.numbers, record, view)
        said, values = self.stub.evaluate(planes)
        for i, record in enumerate(records):
            legal = room[: kernels.legal(self.game.numbers, record, room)]
            logits[i, legal] = said[i, legal]
        return logits, values

    def move(self, records: Any, over: Any, actions: Any) -> tuple[np.ndarray, ...]:
        """Records and whether the game is over after a move, its reward, logits, values. Games that are over stay."""
        records, over = np.array(records), np.array(over)
        reward = np.zeros(len(records), np.float32)
        for i in np.flatnonzero(~over):
            result = kernels.play(self.game.numbers, records[i], int(actions[i]))
            over[i], reward[i] = result != kernels.GOES_ON, result == kernels.WON
        return records, over, reward, *self.look(records)


def asked_of_mctx(game: Game, records: np.ndarray) -> tuple[Any, Any, Any, np.ndarray]:
    """jax; root and recurrent function of a search that knows the rules; which actions are illegal. Or skips."""
    jax, mctx = pytest.importorskip("jax"), pytest.importorskip("mctx")
    jnp, answers = jax.numpy, Answers(game)
    n, floats = len(records), np.float32
    shapes = [(records.shape, np.int8), ((n,), np.bool_), ((n,), floats), ((n, game.actions), floats), ((n,), floats)]
    shaped = tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes)

    def recur(params: Any, key: Any, actions: Any, embedding: Any) -> tuple[Any, Any]:
        after, over, reward, logits, values = jax.pure_callback(answers.move, shaped, *embedding, actions)
        ends = jnp.where(over, 0.0, -1.0)
        return mctx.RecurrentFnOutput(reward=reward, discount=ends, prior_logits=logits, value=values), (after, over)

    logits, values = answers.look(records)
    embedding = jnp.asarray(records), jnp.zeros(n, bool)
    root = mctx.RootFnOutput(prior_logits=jnp.asarray(logits), value=jnp.asarray(values), embedding=embedding)
    return jax, root, recur, logits < -1e30


def visits_of_mctx(game: Game, records: np.ndarray) -> np.ndarray:
    """Of a MuZero search that knows the rules."""
    mctx = pytest.importorskip("mctx")
    jax, root, recur, illegal = asked_of_mctx(game, records)
    jnp = jax.numpy

    def plain(tree: Any, node: Any) -> Any:
        illegal = tree.children_prior_logits[node] < -1e30
        return jnp.where(illegal, -jnp.inf, tree.qvalues(node))

    found = mctx.muzero_policy(
        (),
        jax.random.PRNGKey(0),
        root,
        recur,
        SIMULATIONS,
        invalid_actions=jnp.asarray(illegal),
        qtransform=plain,
        dirichlet_fraction=0.0,
        pb_c_init=1.25,
        pb_c_base=19652.0,
    )
    return np.asarray(found.search_tree.summary().visit_counts)


@pytest.mark.parametrize(("name", "most"), [("connect_four", 30), ("tic_tac_toe", 6)])
def test_root_visits_are_those_of_mctx(name, most):
    pytest.importorskip("mctx")
    game = GAMES[name]
    records = positions(game, most)
    options = SearchOptions(SIMULATIONS, "alphazero", c=1.25, c_base=19652.0, fpu="zero", reuse=False)
    search = Search(game, POSITIONS, options, Stub(game))
    search.restart(records=records)
    while len((done := search.step()).games) < POSITIONS:
        pass
    assert done.visits.sum(1).tolist() == [SIMULATIONS] * POSITIONS
    np.testing.assert_array_equal(visits_of_mctx(game, records), done.visits)
