"""Makes docs/pictures/ctf.png and ctf_match.png: what players of capture the flag see, in eight situations; and a
match as a video shows it.

python docs/ctf_picture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave

from polyplay.games.ctf_rules import CARRIED, DROPPED, TURN, FlagMatches, World
from polyplay.games.ctf_views import draw_first_person, draw_match

PICTURES = Path(__file__).parent / "pictures"
SIZE, SCALE, GAP = 13, 3, 6
MATCH = 3  # of the situations, as a video shows it
WALLS = ((3, 3), (3, 4), (4, 3), (6, 5), (6, 6), (2, 8), (3, 8), (4, 8), (8, 2))  # and the same turned by half
AWAY = ((1.5, 11.5), (2.5, 11.5), (11.5, 1.5), (10.5, 1.5))
# of each situation the seats that stand elsewhere: x, y, heading, pitch, height; seat 0 looks
SCENES: tuple[dict[int, tuple[float, ...]], ...] = (
    {0: (1.5, 4.5, -840, 0, 0)},  # its own base
    {0: (11.2, 8.5, 850, 0, 0), 2: (11.7, 10.2, -900, 0, 0)},  # the other base, guarded
    {0: (5.5, 9.5, -600, 0, 0), 1: (7.2, 8.0, -600, 0, 0), 2: (6.3, 8.3, 1200, 0, 0)},
    {0: (6.0, 3.0, 0, 0, 0), 2: (7.4, 3.2, 1800, 0, 0)},  # an opponent carries its flag
    {0: (9.5, 10.5, -1300, 0, 0)},  # it carries theirs
    {0: (4.5, 5.5, 1200, -250, 0.3)},  # in a jump, looking down
    {0: (6.5, 4.5, 300, 250, 0)},  # looking up
    {0: (2.0, 5.5, 100, 0, 0), 2: (4.5, 5.5, 900, 0, 0), 3: (6.5, 5.2, 2300, 0, 0)},  # both flags lie about
)


def scenes() -> Any:
    s = World(size=SIZE).arrays(len(SCENES))
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
    for r, c in WALLS:
        s["grid"][:, [r, SIZE - 1 - r], [c, SIZE - 1 - c]] = 1
    s["base"][:] = s["flag_at"][:] = (1.5, 1.5), (11.5, 11.5)
    s["at"][:] = AWAY
    for m, seats in enumerate(SCENES):
        for seat, (x, y, yaw, pitch, z) in seats.items():
            s["at"][m, seat], s["yaw"][m, seat], s["pitch"][m, seat], s["z"][m, seat] = (x, y), yaw % TURN, pitch, z
    s["flag"][3, 0], s["carrier"][3, 0] = CARRIED, 2
    s["flag"][4, 1], s["carrier"][4, 1] = CARRIED, 0
    s["flag"][7], s["flag_at"][7] = DROPPED, ((3.5, 5.9), (4.5, 7.0))
    return s


def main() -> None:
    s = scenes()
    out = np.zeros((len(SCENES), 4, 3, 84, 84), np.uint8)
    draw_first_person(FlagMatches.of(s), out)
    big = out[:, 0].transpose(0, 2, 3, 1).repeat(SCALE, 1).repeat(SCALE, 2)
    framed = np.pad(big, ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    rows = [np.concatenate(list(part), 1) for part in np.split(framed, 2)]
    imsave(PICTURES / "ctf.png", np.concatenate(rows))
    imsave(PICTURES / "ctf_match.png", draw_match(s, MATCH))


if __name__ == "__main__":
    main()
