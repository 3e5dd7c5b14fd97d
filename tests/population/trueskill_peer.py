"""Random matches as the package `trueskill` rates them, with an exact error function (its own has seven digits).

python -m tests.population.trueskill_peer FILE      writes 200 of them; needs `pip install trueskill mpmath`
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def draw_matches(n: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Parameters of TrueSkill, teams of 1 to 5 players, the points of the first, weights or None; `then`: after it."""
    import trueskill

    rng = random.Random(seed)
    for _ in range(n):
        sigma = rng.choice([25 / 3, rng.uniform(1, 20)])
        rules = {"mu": 25.0, "sigma": sigma, "beta": rng.choice([sigma / 2, rng.uniform(0.5, 8)])}
        rules |= {"tau": rng.choice([0.0, sigma / 100, rng.uniform(0, 2)]), "draw": rng.choice([0.02, 0.1, 0.5])}
        teams = [[(rng.gauss(25, 8), rng.uniform(0.3, 10)) for _ in range(rng.randint(1, 5))] for _ in range(2)]
        weights = [[rng.uniform(0.1, 1) for _ in team] for team in teams] if rng.random() < 0.3 else None
        points = rng.choice([1.0, 0.5, 0.0])
        peer = trueskill.TrueSkill(25.0, sigma, rules["beta"], rules["tau"], rules["draw"], backend="mpmath")
        given = [tuple(peer.create_rating(*skill) for skill in team) for team in teams]
        ranks = {1.0: [0, 1], 0.5: [0, 0], 0.0: [1, 0]}[points]
        then = [[(float(r.mu), float(r.sigma)) for r in team] for team in peer.rate(given, ranks, weights)]
        yield {"rules": rules, "teams": teams, "weights": weights, "points": points, "then": then}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(json.dumps(match) for match in draw_matches(200)) + "\n]\n")
