"""How fast Go's rules are on one core: random games, with all legal moves of every position, superko among the rules.

    python bench/go.py --seconds 3

Beside OpenSpiel (C++: its random roll-outs from the empty board; Python: a step at a time) and pgx (a batch of games
in one jitted program), where they are installed, in turn; ratios are taken within a round. In all of them every legal
move, the pass among them, has the same chance. OpenSpiel's roll-outs do not say how many moves they made: their number
is taken from the mean length of its games, stepped from Python.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, said, spread, table, verdict

from polyplay.games.board_rules import legal, play, start, write_planes
from polyplay.games.boards import game
from polyplay.games.mcts import integer_below
from polyplay.games.records import GOES_ON, compiled

LEAST = {9: 400e3, 19: 100e3}
OVER = {"OpenSpiel, C++": 1.3, "pgx": 15.0}
GAMES_OF_PGX = 256


@compiled
def play_random(
    numbers: np.ndarray, record: np.ndarray, moves: np.ndarray, random: np.ndarray, planes: np.ndarray, games: int
) -> int:
    """The number of moves of so many random games; planes: room for what a network sees, empty: it sees nothing."""
    made = 0
    for _ in range(games):
        start(numbers, record)
        while True:
            if planes.size:
                write_planes(numbers, record, planes)
            n = legal(numbers, record, moves)
            made += 1
            if play(numbers, record, np.int64(moves[integer_below(random, 0, n)])) != GOES_ON:
                break
    return made


def rate(step: Callable[[], int], seconds: float) -> float:
    """Moves a second of CPU."""
    made, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        made += step()
    return made / spent


def ours(size: int, sees: bool) -> Callable[[], int]:
    board = game(f"go+size={size}")
    given = board.numbers, board.new(), np.zeros(board.actions, np.int16), np.array([1], np.uint64)
    planes = np.zeros(board.planes if sees else (0, 0, 0), np.float32)
    play_random(*given, planes, 1)
    return lambda: play_random(*given, planes, 5)


def open_spiel(size: int) -> dict[str, Callable[[], int]]:
    import pyspiel

    rules, rng = pyspiel.load_game("go", {"board_size": size, "komi": 7.5}), np.random.default_rng(0)

    def one() -> int:
        state, made = rules.new_initial_state(), 0
        while not state.is_terminal():
            actions = state.legal_actions()
            state.apply_action(actions[int(rng.integers(len(actions)))])
            made += 1
        return made

    length, first = np.mean([one() for _ in range(100 if size < 10 else 20)]), rules.new_initial_state()
    evaluator = pyspiel.RandomRolloutEvaluator(10, 1)
    bot = pyspiel.MCTSBot(
        rules, evaluator, 2.0, 1, 100, False, 1, False
    )  # of one simulation: 10 roll-outs of a position

    def ten() -> int:
        bot.step(first)
        return round(10 * length)

    return {"OpenSpiel, C++": ten, "OpenSpiel, Python": one}


def pgx(size: int) -> Callable[[], int]:
    import jax
    import pgx

    env = pgx.make(f"go_{size}x{size}")
    begin, step = jax.vmap(env.init), jax.vmap(env.step)

    def one(_: int, carry: tuple) -> tuple:
        state, key = carry
        key, drawn, fresh = jax.random.split(key, 3)
        action = jax.random.categorical(drawn, jax.numpy.where(state.legal_action_mask, 0.0, -jax.numpy.inf))
        after, new = step(state, action), begin(jax.random.split(fresh, GAMES_OF_PGX))
        over = after.terminated | after.truncated
        pick = lambda a, b: jax.numpy.where(over.reshape(-1, *[1] * (a.ndim - 1)), b, a)  # noqa: E731
        return jax.tree.map(pick, after, new), key

    many = jax.jit(lambda state, key: jax.lax.fori_loop(0, 10, one, (state, key)))
    key = jax.random.PRNGKey(0)
    held = [many(jax.jit(begin)(jax.random.split(key, GAMES_OF_PGX)), key)]

    def ten() -> int:
        held[0] = many(*held[0])
        jax.block_until_ready(held[0])
        return 10 * GAMES_OF_PGX

    ten()
    return ten


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    rows, verdicts, data = list[Row](), list[str](), dict[str, object]()
    for size in (9, 19):
        arms = {"Polyplay": ours(size, False), "Polyplay, with planes": ours(size, True)}
        if importlib.util.find_spec("pyspiel"):
            arms |= open_spiel(size)
        if importlib.util.find_spec("pgx"):
            arms["pgx"] = pgx(size)
        rounds = [{name: rate(step, asked.seconds) for name, step in arms.items()} for _ in range(asked.rounds)]
        for name in arms:
            found = spread(one[name] for one in rounds)
            ratio = spread(one["Polyplay"] / one[name] for one in rounds)
            rows.append({"board": f"{size}×{size}", "rules": name, "moves/s": f"{found['median']:,.0f}"})
            rows[-1]["ours over it"] = "" if name == "Polyplay" else f"{ratio['median']:.2f}"
            if name in OVER:
                verdicts.append(
                    f"{verdict(f'{size}×{size}, over {name}', ratio['median'], least=OVER[name])}; {said(ratio)}"
                )
            if name == "Polyplay":
                verdicts.append(verdict(f"{size}×{size}, moves/s", round(found["median"]), least=LEAST[size]))
        data[str(size)] = rounds
    what = about()
    text = ["# Go's rules on one core", "", *lines_about(what), "", *table(rows), "", *verdicts]
    publish(RESULTS / "go", {**what, "rounds": data}, text)


if __name__ == "__main__":
    main()
