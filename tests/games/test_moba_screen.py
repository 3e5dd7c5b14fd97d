"""What people see of a lane match: what stands where, in whose colour, and how healthy it is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.envs import Envs
from polyplay.games import moba_world
from polyplay.games.moba_views import BACK, DOT, GREEN, GROUND, HERO, ROAD, SIDES, draw_lanes
from polyplay.games.moba_world import LaneWorld
from tests.games.moba_scenes import begun

GIVEN = LaneWorld(team=2, lanes=2)


def colour(picture: np.ndarray, x: int, y: int) -> tuple[int, ...]:
    return tuple(picture[y // DOT, x // DOT].tolist())


def test_the_map_shows_units_of_both_sides():
    s = begun(GIVEN, 2)
    half = s["units"].shape[1] // 2
    s["units"][1, [0, half], : moba_world.HEALTH] = (16000, 9000), (20000, 9000)
    s["units"][1, 0, moba_world.HEALTH] = s["units"][1, 0, moba_world.MOST] // 2
    s["units"][1, half + 2, : moba_world.MOST] = 17000, 14000, 80
    s["units"][1, 2 + 2 * moba_world.SLOTS, moba_world.HEALTH] = 0  # an outer tower has fallen
    picture = draw_lanes(s, 1)
    assert picture.shape == (GIVEN.height // DOT, moba_world.WIDTH // DOT, 3)
    assert [colour(picture, x, 9000) for x in (16000, 20000)] == list(SIDES)
    assert colour(picture, 17000, 14000) == SIDES[1]
    assert colour(picture, moba_world.OUTER_X, 6000) == ROAD
    assert [colour(picture, x, 6000) for x in (moba_world.INNER_X, moba_world.WIDTH - moba_world.OUTER_X)] == list(
        SIDES
    )
    assert [colour(picture, x, 10000) for x in (moba_world.CORE_X, moba_world.WIDTH - moba_world.CORE_X)] == list(SIDES)
    assert colour(picture, 18000, 3000) == GROUND
    bar = picture[9000 // DOT - HERO - 7, 16000 // DOT - HERO : 16000 // DOT + HERO + 1].tolist()
    assert bar == [list(GREEN)] * 9 + [list(BACK)] * 8


def test_a_pool_shows_the_match_of_a_lane():
    with closing(Envs("arena:lanes+team=1+lanes=1+repeat=3+length=9", 4).open(3)) as pool:
        pool.recv()
        picture, rate = pool.picture(3)
        assert rate == 10.0
        assert (picture == draw_lanes(pool.state()["game"], 1)).all()


@pytest.mark.long
def test_an_evaluation_is_filmed(tmp_path: Path):
    av = pytest.importorskip("av")
    given = {"env": "arena:lanes+team=1+lanes=1+length=40", "network": "mlp", "serial": True, "tensorboard": False}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=100, lanes=4, unroll=8, minibatches=1, **given)
    found = polyplay.evaluate(run.directory, episodes=4, video=True)
    with av.open(found["video"]) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 11
    assert frames[0].shape == (12000 // DOT, moba_world.WIDTH // DOT, 3)
