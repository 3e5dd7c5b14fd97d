"""Rules, observations and pools of games on one core: `python bench/games.py go`, `ctf`, `lanes`."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, commands, lines_about, publish, said, spread, table, verdict

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.envs.lane import Seats
from polyplay.envs.make import connect
from polyplay.games import ctf_maps, ctf_rules
from polyplay.games.board_pool import integer_below
from polyplay.games.board_rules import legal, play, start, write_planes
from polyplay.games.boards import game
from polyplay.games.ctf_rules import COMPOSITE, EVENTS, FlagMatches, World
from polyplay.games.moba import level3
from polyplay.games.records import GOES_ON, compiled
from polyplay.games.toys import toy

# How fast Go's rules are on one core: random games, with all legal moves of every position, superko among the r


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
            if play(numbers, record, np.int64(moves[integer_below(random, n)])) != GOES_ON:
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


def run_go() -> None:
    """How fast Go's rules are on one core: random games, with all legal moves of every position; superko is a rule.

        python bench/games.py go --seconds 3

    Beside OpenSpiel (C++: its random roll-outs from the empty board; Python: a step at a time) and pgx (a batch of
    games in one jitted program), where they are installed, in turn; ratios are taken within a round. In all of
    them every legal move, the pass among them, has the same chance. OpenSpiel's roll-outs do not say how many moves
    they made: their number is taken from the mean length of its games, stepped from Python.
    """
    parser = command_line(run_go.__doc__)
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


# How fast capture the flag is on one core: its rules alone, the window view, the first-person view, and new map


CTF_LEAST = {"rules": 5e6, "window": 350e3, "pixels": 80e3}  # agent steps a second


def ctf_rate(step: Callable[[int], int], seconds: float) -> float:
    """What a second of CPU makes; step: number of the call → what it made."""
    for i in range(5):
        step(i)
    made, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        made += step(made)
    return made / spent


def actions(lanes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.stack([rng.integers(n, size=lanes) for n in COMPOSITE.nvec], -1) for _ in range(64)]


def pool(title: str, lanes: int) -> Callable[[int], int]:
    found, given = connect(Envs(title, lanes), 0, 0), actions(lanes)

    def step(i: int) -> int:
        ready, _ = found.recv()
        found.send(ready, given[i % 64])
        return lanes

    return step


def ctf_game(lanes: int) -> Callable[[int], int]:
    s, n = World().arrays(lanes // 4), lanes // 4
    for m in range(n):
        ctf_maps.draw_map(np.uint64(m), m % 2 == 0, s["grid"][m], s["base"][m], s["spawn"][m])
    ctf_rules.begin_matches(FlagMatches.of(s))
    hit = np.zeros(4, bool)
    reward, events = np.empty((n, 4), np.float32), np.empty((n, 4, len(EVENTS)), np.float32)
    given = [a.reshape(n, 4, 6) for a in actions(lanes)]

    def step(i: int) -> int:
        ctf_rules.step_matches(FlagMatches.of(s), given[i % 64], reward, events, hit)
        return lanes

    return step


def new_maps(rooms: bool) -> Callable[[int], int]:
    s: Any = World().arrays(1)

    def step(i: int) -> int:
        ctf_maps.draw_map(np.uint64(i), rooms, s["grid"][0], s["base"][0], s["spawn"][0])
        return 1

    return step


def run_ctf() -> None:
    """How fast capture the flag is on one core: its rules alone, the window view, the first-person view, and new maps.

        python bench/games.py ctf --seconds 4

    Random composite actions, 2 against 2 on maps of 13 × 13, whole pools as systems use them: rows, turns and new
    matches included. `rules` and `maps` are the compiled functions alone.
    """
    parser = command_line(run_ctf.__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each")
    asked = parser.parse_args()
    rows: list[Row] = []
    for lanes in (64, 256):
        each = {
            "rules": ctf_game(lanes),
            "window": pool("arena:ctf", lanes),
            "pixels": pool("arena:ctf+view=pixels", lanes),
        }
        rows += [
            {"what": k, "lanes": lanes, "agent steps/s": ctf_rate(step, asked.seconds)} for k, step in each.items()
        ]
    drawn = [{"what": k, "µs": 1e6 / ctf_rate(new_maps(k == "rooms"), asked.seconds)} for k in ("rooms", "open")]
    best = {k: max(row["agent steps/s"] for row in rows if row["what"] == k) for k in CTF_LEAST}
    what = {**about(), "rows": rows, "maps": drawn}
    text = ["# Capture the flag: the game's speed", "", *lines_about(what), "", *table(rows), ""]
    text += [verdict(f"{k}, agent steps a second of one core", best[k], least=least) for k, least in CTF_LEAST.items()]
    text += ["", "A new map of 13 × 13:", "", *table(drawn)]
    publish(RESULTS / "ctf", what, text)


# How fast the lane game is on one core: its rules alone, with what heroes see, and as pools that systems use


LANES_LEAST = 600e3  # hero steps a second, 5 v 5, observations included
KEPT = 64  # steps whose actions are drawn before


def lanes_rate(step: Callable[[int], int], seconds: float) -> float:
    """What a second of CPU makes; step: number of the call → what it made."""
    for i in range(5):
        step(i)
    made, calls, began = 0, 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        made, calls = made + step(calls), calls + 1
    return made / spent


def drawn(title: str, matches: int) -> tuple[Any, Any, list[Any]]:
    """A game, its states in the middle of matches, and actions of a few steps."""
    game, rng, given = toy(Envs(title, 1)), np.random.default_rng(0), []
    match, seat = np.divmod(np.arange(matches * game.seats), game.seats)
    start = s = game.reset(lambda: rng.random(matches), matches)
    for t in range(300 + KEPT):
        action = tree.map(lambda x: x.reshape(matches, -1), level3(None, None, Seats(game, s, match, seat)))
        given += [action] if t >= 300 else []
        start = tree.map(np.copy, s) if t == 300 else start
        s, _ = game.step(s, action, rng.random)
    return game, start, given


def steps(title: str, lanes: int, sees: bool) -> Callable[[int], int]:
    game, s, given = drawn(title, lanes // toy(Envs(title, 1)).seats)
    start = tree.map(np.copy, s)

    def step(i: int) -> int:
        if i % KEPT == 0:
            tree.write(s, ..., start)
        game.step(s, given[i % KEPT], np.zeros)
        if sees:
            game.see(s)
            game.legal(s)
        return lanes

    return step


def lanes_pool(title: str, lanes: int) -> Callable[[int], int]:
    found, (_, _, given) = connect(Envs(title, lanes), 0, 0), drawn(title, lanes // toy(Envs(title, 1)).seats)
    flat = [tree.map(np.ravel, action) for action in given]

    def step(i: int) -> int:
        ready, _ = found.recv()
        found.send(ready, flat[i % KEPT])
        return lanes

    return step


def run_lanes() -> None:
    """How fast the lane game is on one core: its rules alone, with what heroes see, and as pools that systems use.

        python bench/games.py lanes --seconds 4

    Bots of level 3 play, so there is much to do. A hero step is an agent step of one hero, `repeat` steps of the game.
    `rules` steps matches and looks who sees whom; `game` makes observations and masks too; `pool` also has rows and
    turns.
    """
    parser = command_line(run_lanes.__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each")
    asked = parser.parse_args()
    rows: list[Row] = []
    for title, lanes in (("arena:moba", 320), ("arena:moba", 1280), ("arena:moba+team=2+lanes=1", 256)):
        each = {
            "rules": steps(title, lanes, False),
            "game": steps(title, lanes, True),
            "pool": lanes_pool(title, lanes),
        }
        for what, step in each.items():
            rows.append({"env": title, "lanes": lanes, "what": what, "hero steps/s": lanes_rate(step, asked.seconds)})
    best = max(row["hero steps/s"] for row in rows if row["what"] == "game" and row["env"] == "arena:moba")
    text = ["# The lane game's speed", "", *lines_about(about()), "", *table(rows), ""]
    text += [
        verdict("hero steps a second of one core, 5 v 5, observations and masks included", best, least=LANES_LEAST)
    ]
    publish(RESULTS / "lanes", {**about(), "rows": rows}, text)


if __name__ == "__main__":
    sys.exit(commands({"go": run_go, "ctf": run_ctf, "lanes": run_lanes}))
