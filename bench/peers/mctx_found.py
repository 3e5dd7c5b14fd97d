"""What mctx finds in positions of ours, by our rules and a stub for a network: writes tests/search/mctx.npz.

    python bench/peers/mctx_found.py

where mctx is installed (0.0.71 wrote it); tests/search/test_mctx.py compares it with what the compiled search finds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES, Game
from tests.search.test_mctx import CASES, CONSIDERED, FOUND, GUMBEL, SIMULATIONS, positions
from tests.search.twins import Stub


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
            board_rules.write_planes(self.game.numbers, record, view)
        said, values = self.stub.evaluate(planes)
        for i, record in enumerate(records):
            legal = room[: board_rules.legal(self.game.numbers, record, room)]
            logits[i, legal] = said[i, legal]
        return logits, values

    def move(self, records: Any, over: Any, actions: Any) -> tuple[np.ndarray, ...]:
        """Records and whether the game is over after a move, its reward, logits, values. Games that are over stay."""
        records, over = np.array(records), np.array(over)
        reward = np.zeros(len(records), np.float32)
        for i in np.flatnonzero(~over):
            result = board_rules.play(self.game.numbers, records[i], int(actions[i]))
            over[i], reward[i] = result != kernels.GOES_ON, result == kernels.WON
        return records, over, reward, *self.look(records)


def asked_of_mctx(game: Game, records: np.ndarray) -> tuple[Any, Any, Any, np.ndarray]:
    """jax; root and recurrent function of a search that knows the rules; which actions are illegal."""
    import jax
    import mctx

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
    """Of a MuZero search that knows the rules, with AlphaZero's exploration term, values that are not rescaled, and 0
    for moves that were not tried.
    """
    import mctx

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


def gumbel_of_mctx(game: Game, records: np.ndarray) -> dict[str, np.ndarray]:
    """Of its Gumbel MuZero, with the noise that it drew."""
    import mctx

    jax, root, recur, illegal = asked_of_mctx(game, records)
    found = mctx.gumbel_muzero_policy(
        (),
        jax.random.PRNGKey(0),
        root,
        recur,
        GUMBEL,
        invalid_actions=jax.numpy.asarray(illegal),
        max_num_considered_actions=CONSIDERED,
    )
    tree = found.search_tree
    parts = {"noise": tree.extra_data.root_gumbel, "gumbel_visits": tree.summary().visit_counts}
    parts |= {"moves": found.action, "policy": found.action_weights}
    return {name: np.asarray(part) for name, part in parts.items()}


def found_by_mctx() -> dict[str, np.ndarray]:
    found = dict[str, np.ndarray]()
    for name, most in CASES:
        game = GAMES[name]
        records = positions(game, most)
        parts = {"visits": visits_of_mctx(game, records), **gumbel_of_mctx(game, records)}
        found |= {f"{name} {part}": values for part, values in parts.items()}
    return found


if __name__ == "__main__":
    np.savez_compressed(FOUND, **found_by_mctx())
