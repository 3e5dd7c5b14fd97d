"""mctx and pgx (JAX) play a board game against themselves: a jitted move of many games in step.

The network is AlphaGo Zero's with its batch norm folded, channels last. `--uniform`: every move alike, every position
even, no network. With several processes each has a core and one thread.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import board_counts

BOARDS = {"game:connect_four": "connect_four", "game:go+size=9": "go_9x9"}


def play(asked: argparse.Namespace, i: int, count: board_counts.Count) -> None:
    if asked.processes > 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import jax.numpy as jnp
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make(BOARDS[asked.board])
    evaluate = uniform(jnp, env.num_actions) if asked.uniform else network(jax, jnp, env, asked)
    search = make_search(jax, env, evaluate, asked.simulations)
    step = auto_reset(env.step, env.init)

    def move(state: Any, key: Any, moves: int) -> tuple[Any, Any, Any]:
        """`moves` in every game; the games that ended."""

        def once(carried: Any, key: Any) -> tuple[Any, Any]:
            first, second = jax.random.split(key)
            found = search(carried, first)
            keys = jax.random.split(second, asked.games)
            after = jax.vmap(step)(carried, found.action, keys)
            return after, (after.terminated | after.truncated).sum()

        state, ended = jax.lax.scan(once, state, jax.random.split(key, moves))
        return state, ended.sum()

    jitted = jax.jit(move, static_argnums=2)
    key = jax.random.PRNGKey(i)
    state = jax.jit(jax.vmap(env.init))(jax.random.split(key, asked.games))
    several = 20 if asked.uniform else 1
    while True:
        key, sub = jax.random.split(key)
        state, ended = jitted(state, sub, several)
        n, moves = int(ended), several * asked.games  # waits
        count.add(steps=moves * asked.simulations, evaluations=moves * (asked.simulations + 1), moves=moves, games=n)


def make_search(jax: Any, env: Any, evaluate: Callable, simulations: int) -> Callable:
    """A search of all games from their states, as pgx's AlphaZero example has it."""
    import jax.numpy as jnp
    import mctx

    def masked(logits: Any, legal: Any) -> Any:
        return jnp.where(legal, logits - logits.max(-1, keepdims=True), jnp.finfo(logits.dtype).min)

    def recur(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        mover = state.current_player
        state = jax.vmap(env.step)(state, action)
        logits, value = evaluate(state.observation)
        reward = jax.vmap(lambda rewards, player: rewards[player])(state.rewards, mover)
        over = state.terminated
        answer = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.where(over, 0.0, -1.0),
            prior_logits=masked(logits, state.legal_action_mask),
            value=jnp.where(over, 0.0, value),
        )
        return answer, state

    def search(state: Any, key: Any) -> Any:
        logits, value = evaluate(state.observation)
        root = mctx.RootFnOutput(prior_logits=masked(logits, state.legal_action_mask), value=value, embedding=state)
        return mctx.muzero_policy(
            params=(),
            rng_key=key,
            root=root,
            recurrent_fn=recur,
            num_simulations=simulations,
            invalid_actions=~state.legal_action_mask,
            dirichlet_alpha=1.0,
            qtransform=_plain,
        )

    return search


def _plain(tree: Any, node: Any) -> Any:
    """A move's value for who makes it, not rescaled: AlphaZero's."""
    return tree.qvalues(node)


def uniform(jnp: Any, actions: int) -> Callable:
    return lambda planes: (jnp.zeros((len(planes), actions)), jnp.zeros(len(planes)))


def network(jax: Any, jnp: Any, env: Any, asked: argparse.Namespace) -> Callable:
    """From planes [N, height, width, C] to logits [N, actions] and values [N], float32."""
    height, width, planes = env.observation_shape
    cells = height * width
    numbers = jnp.dtype(asked.precision)
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 64))

    def weights(*shape: int) -> tuple[Any, Any]:
        scale = (2.0 / float(jnp.prod(jnp.array(shape[:-1])))) ** 0.5
        return (scale * jax.random.normal(next(keys), shape)).astype(numbers), jnp.zeros(shape[-1], numbers)

    stem = weights(3, 3, planes, asked.filters)
    tower = [(weights(3, 3, *2 * (asked.filters,)), weights(3, 3, *2 * (asked.filters,))) for _ in range(asked.blocks)]
    policy, value = weights(1, 1, asked.filters, 2), weights(1, 1, asked.filters, 1)
    logits, hidden, output = weights(2 * cells, env.num_actions), weights(cells, 256), weights(256, 1)

    def conv(x: Any, layer: Any) -> Any:
        made = jax.lax.conv_general_dilated(x, layer[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return made + layer[1]

    def linear(x: Any, layer: Any) -> Any:
        return x.reshape(len(x), -1) @ layer[0] + layer[1]

    def evaluate(planes: Any) -> tuple[Any, Any]:
        x = jax.nn.relu(conv(planes.astype(numbers), stem))
        for first, second in tower:
            x = jax.nn.relu(x + conv(jax.nn.relu(conv(x, first)), second))
        v = linear(jax.nn.relu(linear(jax.nn.relu(conv(x, value)), hidden)), output)
        p = linear(jax.nn.relu(conv(x, policy)), logits)
        return p.astype(jnp.float32), jnp.tanh(v[:, 0]).astype(jnp.float32)

    return evaluate


if __name__ == "__main__":
    parser = board_counts.command_line(__doc__)
    parser.add_argument("--games", type=int, default=64, help="of each process")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--board", choices=BOARDS, default="game:connect_four")
    parser.add_argument("--uniform", action="store_true")
    parser.set_defaults(processes=1)
    board_counts.run(play, parser.parse_args())
