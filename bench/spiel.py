"""What OpenSpiel's rules cost a search: self-play of connect four by them, beside our own rules.

    python bench/spiel.py

Both play with the same network in one process, in turns: 5 blocks of 64 filters, 100 simulations a move.
"""

from __future__ import annotations

import argparse

import torch
from common import RESULTS, about, command_line, lines_about, publish, said, spread, table, verdict
from self_play import Player

LEAST = 0.8
GAMES = {"ours": "game:connect_four", "OpenSpiel's": "game:spiel:connect_four"}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turn", type=float, default=5.0, help="seconds of each in a round")
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    how = {"games": 64, "simulations": 100, "blocks": 5, "filters": 64, "players": 1}
    players = {
        name: Player(0, "torch", asked.precision, False, argparse.Namespace(env=env, **how))
        for name, env in GAMES.items()
    }
    for player in players.values():
        player.spread(4.0)
    rates = dict[str, list[float]]()
    for _ in range(asked.rounds):
        for name, player in players.items():
            found = player.during(asked.turn)
            rates.setdefault(name, []).append(how["simulations"] * found["moves"] / found["seconds"])
    ratios = [theirs / ours for ours, theirs in zip(*rates.values(), strict=True)]
    rows = [{"rules": name, "simulations/s": round(sorted(of)[len(of) // 2])} for name, of in rates.items()]
    what, found = about(), spread(ratios)
    text = ["# OpenSpiel's rules in a search", "", *lines_about(what), ""]
    text += [f"Connect four, torch {asked.precision}, one core; {asked.rounds} rounds of {asked.turn:g} s.", ""]
    text += [*table(rows), "", f"OpenSpiel's over ours: {said(found)}.", ""]
    text += [verdict("OpenSpiel's rules over ours", found["median"], least=LEAST)]
    publish(RESULTS / "spiel", {**what, "rates": rates, "ratios": found}, text)


if __name__ == "__main__":
    main()
