"""How fast capture the flag is on one core: its rules alone, the window view, the first-person view, and new maps.

    python bench/ctf.py --seconds 4

Random composite actions, 2 against 2 on maps of 13 × 13, whole pools as systems use them: rows, turns and new matches
included. `rules` and `maps` are the compiled functions alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict

from polyplay.envs import Envs
from polyplay.envs.make import connect
from polyplay.games import ctf_maps, ctf_rules
from polyplay.games.ctf_rules import COMPOSITE, EVENTS, FlagMatches, World

LEAST = {"rules": 5e6, "window": 350e3, "pixels": 80e3}  # agent steps a second


def rate(step: Callable[[int], int], seconds: float) -> float:
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


def game(lanes: int) -> Callable[[int], int]:
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


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each")
    asked = parser.parse_args()
    rows: list[Row] = []
    for lanes in (64, 256):
        each = {
            "rules": game(lanes),
            "window": pool("arena:ctf", lanes),
            "pixels": pool("arena:ctf+view=pixels", lanes),
        }
        rows += [{"what": k, "lanes": lanes, "agent steps/s": rate(step, asked.seconds)} for k, step in each.items()]
    drawn = [{"what": k, "µs": 1e6 / rate(new_maps(k == "rooms"), asked.seconds)} for k in ("rooms", "open")]
    best = {k: max(row["agent steps/s"] for row in rows if row["what"] == k) for k in LEAST}
    what = {**about(), "rows": rows, "maps": drawn}
    text = ["# Capture the flag: the game's speed", "", *lines_about(what), "", *table(rows), ""]
    text += [verdict(f"{k}, agent steps a second of one core", best[k], least=least) for k, least in LEAST.items()]
    text += ["", "A new map of 13 × 13:", "", *table(drawn)]
    publish(RESULTS / "ctf", what, text)


if __name__ == "__main__":
    main()
