"""How fast the lane game is on one core: its rules alone, with what heroes see, and as pools that systems use.

    python bench/lanes.py --seconds 4

Bots of level 3 play, so there is much to do. A hero step is an agent step of one hero, `repeat` steps of the game.
`rules` steps matches and looks who sees whom; `game` makes observations and masks too; `pool` also has rows and turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict

from polyplay.core import tree
from polyplay.envs import Envs
from polyplay.envs.lane import Seats
from polyplay.envs.make import connect
from polyplay.games.arenas import arena
from polyplay.games.moba import level3

LEAST = 600e3  # hero steps a second, 5 v 5, observations included
KEPT = 64  # steps whose actions are drawn before


def rate(step: Callable[[int], int], seconds: float) -> float:
    """What a second of CPU makes; step: number of the call → what it made."""
    for i in range(5):
        step(i)
    made, calls, began = 0, 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        made, calls = made + step(calls), calls + 1
    return made / spent


def drawn(title: str, matches: int) -> tuple[Any, Any, list[Any]]:
    """A game, its states in the middle of matches, and actions of a few steps."""
    game, rng, given = arena(Envs(title, 1)), np.random.default_rng(0), []
    match, seat = np.divmod(np.arange(matches * game.seats), game.seats)
    start = s = game.reset(lambda: rng.random(matches), matches)
    for t in range(300 + KEPT):
        action = tree.map(lambda x: x.reshape(matches, -1), level3(None, None, Seats(game, s, match, seat)))
        given += [action] if t >= 300 else []
        start = tree.map(np.copy, s) if t == 300 else start
        s, _ = game.step(s, action, rng.random)
    return game, start, given


def steps(title: str, lanes: int, sees: bool) -> Callable[[int], int]:
    game, s, given = drawn(title, lanes // arena(Envs(title, 1)).seats)
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


def pool(title: str, lanes: int) -> Callable[[int], int]:
    found, (_, _, given) = connect(Envs(title, lanes), 0, 0), drawn(title, lanes // arena(Envs(title, 1)).seats)
    flat = [tree.map(np.ravel, action) for action in given]

    def step(i: int) -> int:
        ready, _ = found.recv()
        found.send(ready, flat[i % KEPT])
        return lanes

    return step


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each")
    asked = parser.parse_args()
    rows: list[Row] = []
    for title, lanes in (("arena:lanes", 320), ("arena:lanes", 1280), ("arena:lanes+team=2+lanes=1", 256)):
        each = {"rules": steps(title, lanes, False), "game": steps(title, lanes, True), "pool": pool(title, lanes)}
        for what, step in each.items():
            rows.append({"env": title, "lanes": lanes, "what": what, "hero steps/s": rate(step, asked.seconds)})
    best = max(row["hero steps/s"] for row in rows if row["what"] == "game" and row["env"] == "arena:lanes")
    text = ["# The lane game's speed", "", *lines_about(about()), "", *table(rows), ""]
    text += [verdict("hero steps a second of one core, 5 v 5, observations and masks included", best, least=LEAST)]
    publish(RESULTS / "lanes", {**about(), "rows": rows}, text)


if __name__ == "__main__":
    main()
