"""Makes docs/pictures/lanes_match.png: a lane match between bots, as a video shows it.

python docs/lanes_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imsave

from polyplay.envs.lane import Seats
from polyplay.games.moba import LaneGame, level2, level3
from polyplay.games.moba_views import draw_lanes
from polyplay.games.moba_world import PARTS

STEPS = 433  # of the agents


def main() -> None:
    game, rng, match = LaneGame(), np.random.default_rng(3), np.zeros(5, np.int64)
    s = game.reset(lambda: rng.random(1), 1)
    for _ in range(STEPS):
        both = [
            bot(None, None, Seats(game, s, match, np.arange(5) + first)) for bot, first in ((level3, 0), (level2, 5))
        ]
        s, _ = game.step(s, {k: np.concatenate([a[k] for a in both])[None] for k in PARTS}, lambda: rng.random(1))
    imsave(Path(__file__).parent / "pictures" / "lanes_match.png", draw_lanes(s, 0))


if __name__ == "__main__":
    main()
