"""What people see of a match: who and what stands where on the map, and every player's own view."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.envs import Envs
from polyplay.games.arenas import arena
from polyplay.games.ctf_rules import CARRIED, World
from polyplay.games.ctf_views import (
    BLUE,
    COLOURS,
    FRAME,
    PICTURED,
    PIXELS,
    RED,
    SIDE,
    STONE,
    VIEW,
    WHITE,
    draw_first_person,
    draw_match,
)

SIZE = 13


def scene() -> dict[str, np.ndarray]:
    """Walls around; players at places of their own; an opponent carries the first team's flag."""
    s = World(size=SIZE).arrays(2)
    s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
    s["base"][:] = s["flag_at"][:] = (2.5, 2.5), (10.5, 10.5)
    s["at"][1] = (4.5, 2.5), (4.5, 8.5), (8.5, 4.5), (8.5, 8.5)
    s["yaw"][1] = 0, 900, 1800, 2700
    s["flag"][1, 0], s["carrier"][1, 0] = CARRIED, 2
    return s


def colour(picture: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    """Of the map at a point."""
    return tuple(picture[int(y * SIDE / SIZE), int(x * SIDE / SIZE)].tolist())


def test_the_map_shows_walls_players_and_flags():
    picture = draw_match(scene(), 1)
    red, blue = (tuple(COLOURS[team].tolist()) for team in (RED, BLUE))
    assert picture.shape == (SIDE, SIDE + 2 * (VIEW + 2 * FRAME), 3)
    assert colour(picture, 0.5, 6.5) == STONE
    assert [colour(picture, 4.3, 2.5), colour(picture, 4.3, 8.5)] == [red, red]
    assert [colour(picture, 8.5, 4.5), colour(picture, 8.7, 8.5)] == [red, blue]  # a red flag on a blue player
    assert colour(picture, 10.5, 10.5) == blue
    assert colour(picture, 10.5, 10.25) == tuple(COLOURS[WHITE].tolist())
    assert colour(picture, 2.5, 2.5) not in (red, blue)  # the flag is away


def test_views_are_the_players_own_in_the_order_of_teams():
    s = scene()
    picture, seen = draw_match(s, 1), np.empty((2, 4, 3, PIXELS, PIXELS), np.uint8)
    draw_first_person(*(s[k] for k in PICTURED), seen)
    for seat, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        top, left = row * (VIEW + 2 * FRAME), SIDE + column * (VIEW + 2 * FRAME)
        assert picture[top, left].tolist() == COLOURS[(RED, BLUE)[row]].tolist()
        inside = picture[top + FRAME : top + FRAME + VIEW : 2, left + FRAME : left + FRAME + VIEW : 2]
        assert (inside == seen[1, seat].transpose(1, 2, 0)).all()


def test_a_pool_shows_the_match_of_a_lane():
    envs = Envs("arena:ctf+repeat=3+length=9", 8)
    with closing(envs.open(3)) as pool:
        pool.recv()
        picture, rate = pool.picture(6)
        assert rate == 5.0
        assert (picture == draw_match(pool.state()["game"], 1)).all()
        assert not (picture == pool.picture(0)[0]).all()
    assert arena(envs).picture(scene(), 0)[1] == 5.0


def test_an_evaluation_is_filmed(tmp_path: Path):
    av = pytest.importorskip("av")
    given = {"env": "arena:ctf+size=9+length=12+actions=small", "network": "mlp", "serial": True, "tensorboard": False}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=200, lanes=8, unroll=8, minibatches=1, **given)
    found = polyplay.evaluate(run.directory, episodes=4, video=True)
    with av.open(found["video"]) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 13
    assert frames[0].shape == (SIDE, SIDE + 2 * (VIEW + 2 * FRAME), 3)
