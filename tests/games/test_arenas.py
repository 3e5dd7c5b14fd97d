"""Arenas as environments: lanes, seeds, pictures, and wrong options; states of all pools of games."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import polyplay
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs import Envs
from polyplay.envs.lane import load_bot, seat_bot
from polyplay.envs.make import connect
from polyplay.envs.pool import EnvSpec, Pool
from polyplay.envs.spaces import action_width, random_actions
from polyplay.games import ctf, ctf_rules, moba
from polyplay.games.ctf_views import FRAME, SIDE, VIEW, draw_match
from polyplay.games.moba_views import REWARDS, SHARES, draw_lanes
from tests.toys import MADE

CTF, LANES = "arena:ctf+size=9+length=40", "arena:moba+team=2+lanes=1+length=80"


def drawn(spec: EnvSpec, lane: int, t: int, row: Batch) -> Tree:
    """Actions of the lanes of a row that depend on their numbers and the step alone."""
    width = action_width(spec.action)
    u = np.stack([np.random.default_rng([t, lane + i]).random(width) for i in range(len(row["first"]))])
    return random_actions(spec.action, u, row.get("mask"))


def go_on(pool: Pool, steps: range, lane: int = 0) -> list[Batch]:
    """Copies of the rows of these steps."""
    rows = []
    for t in steps:
        ids, row = pool.recv()
        rows.append({**tree.map(np.copy, row), "lane": lane + np.arange(pool.lanes)[ids]})
        pool.send(ids, drawn(pool.spec, lane, t, row))
    return rows


def played(title: str, lanes: int, steps: int, lane: int = 0) -> list[Batch]:
    return go_on(connect(Envs(title, lanes), 3, lane), range(steps), lane)


def equal(a: Tree, b: Tree) -> bool:
    return all((x == y).all() for (_, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.mark.parametrize(
    ("title", "events", "ends"), [(CTF, ctf_rules.EVENTS, [40, 81]), (LANES, (*REWARDS, *SHARES), [20, 41])]
)
def test_a_match_has_two_teams_events_and_an_end(title, events, ends):
    spec, rows = Envs(title, 8).spec, played(title, 8, 90 if title == CTF else 45)
    assert (spec.seats, spec.teams, spec.events, spec.team_reward) == (4, (0, 0, 1, 1), events, True)
    assert [t for t, row in enumerate(rows) if row["terminated"].all()] == ends
    assert all(rows[t + 1]["first"].all() for t in ends)
    assert not any(row["truncated"].any() for row in rows)
    if title == CTF:
        assert np.prod(spec.action.nvec) == 540
        assert not equal(rows[0]["obs"], rows[41]["obs"]), "each match has a map of its own"
        return
    assert {k: v.n for k, v in spec.action.items()} == {"primary": 8, "unit": 1 + 2 + 8 + 6, "offset": 81, "delay": 4}
    assert {k: v.shape for k, v in rows[0]["mask"].items()} == {"primary": (8, 8), "unit": (8, 8, 17)}
    legal = [row["mask"]["primary"].all() and row["mask"]["unit"].all() for row in rows]
    assert [t for t, all_are in enumerate(legal) if all_are] == ends, "nobody plays there"
    assert max(abs(row["reward"]).max() for row in rows) > 0


def digest(*trees: Tree) -> str:
    found = hashlib.sha256()
    for leaves in map(tree.leaves, trees):
        for path, x in leaves:
            found.update(path.encode() + np.ascontiguousarray(x).tobytes())
    return found.hexdigest()[:16]


HELD_OUT = "arena:ctf+size=9+length=900+team=1+reward=win+maps=held_out"


@pytest.mark.parametrize(
    ("title", "lanes", "bots", "steps", "wanted"),
    [
        (CTF, 8, "level5 attacker", 90, "1160e6c690685cd5"),
        ("arena:ctf+length=900+team=3+actions=small+repeat=2", 12, "level4 returner", 460, "581c8e77077f3937"),
        (HELD_OUT, 8, "attacker level3", 950, "c0e146b72a6ff9e3"),
        ("arena:moba+length=1200+randomize=1", 20, "level4 level2", 310, "44fdf38bd469c014"),
        ("arena:moba+team=2+lanes=1+length=900+repeat=3+reward=win", 8, "level4 level3", 310, "de828a783d7d286b"),
    ],
)
def test_matches_of_bots_and_random_players_go_as_they_always_did(title, lanes, bots, steps, wanted):
    """Rules, observations, masks, rewards and events; a third of the seats plays at random."""
    pool, rows = connect(Envs(title, lanes), 5, 0), []
    seats = [np.arange(lanes)[k::3] for k in range(2)]
    seated = [seat_bot(load_bot(pool.spec, bot), pool, at) for bot, at in zip(bots.split(), seats, strict=True)]
    for t in range(steps):
        ids, row = pool.recv()
        rows.append(tree.map(np.copy, row))
        action = drawn(pool.spec, 0, t, row)
        for bot, at in zip(seated, seats, strict=True):
            tree.write(action, at, bot(row["obs"], None))
        pool.send(ids, action)
    assert digest(*rows, pool.state()["game"]) == wanted


TITLES = (CTF, CTF + "+team=1+kind=open", LANES, "arena:moba+team=1+lanes=2+length=60+randomize=1+repeat=3")


@pytest.mark.parametrize(
    "title",
    [
        *(*TITLES, "toy:tests.toys:CartPole", "game:tic_tac_toe"),
        pytest.param(CTF + "+view=pixels", marks=pytest.mark.long),
    ],
)
def test_lanes_play_alike_however_many_there_are(title):
    seats = Envs(title, 4).spec.seats
    together, apart = played(title, 2 * seats, 45), [played(title, seats, 45, lane=lane) for lane in (0, seats)]
    for whole, *parts in zip(together, *apart, strict=True):
        assert equal(whole, tree.map(lambda *x: np.concatenate(x), *parts))


@pytest.mark.parametrize(
    ("title", "lanes", "more"),
    [
        (CTF, 8, {}),
        (LANES + "+randomize=0.5", 8, {}),
        *((f"toy:{name}", 6, {}) for name in ("catch", "memory", *MADE)),
        ("toy:tests.toys:CartPole", 6, {"groups": 2}),
        ("toy:catch", 6, {"at_once": 2}),
        ("toy:skirmish+health=3+late=1", 16, {}),
        ("toy:skirmish+health=3", 16, {"groups": 2}),
        ("toy:skirmish+health=3", 16, {"agents": 4, "groups": 4}),
        *(("game:connect_four+opponent=mcts:5", 6, more) for more in ({}, {"groups": 2}, {"at_once": 2})),
    ],
)
def test_a_state_goes_on_to_the_bit(title, lanes, more):
    """Saved between a recv and its send, loaded into a pool with another seed and past."""
    envs = Envs(title, lanes, **more)
    pool, other = envs.open(1), envs.open(99)
    go_on(pool, range(37))
    go_on(other, range(11))
    ids, row = pool.recv()
    action, ends = drawn(pool.spec, 0, 37, row), []
    other.load(pool.state())
    for one in (pool, other):
        one.send(ids, action)
        ends.append(go_on(one, range(38, 128)))
    assert all(equal(a, b) for a, b in zip(*ends, strict=True))
    assert any(row["over"].any() for row in ends[0]) or "Pendulum" in title or "Still" in title


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("arena:soccer", "--env arena:soccer: unknown arena; allowed: arena:ctf, arena:moba"),
        ("arena:ctf+view=maps", "view must be one of window, pixels; got maps"),
        ("arena:ctf+size=12", "size must be an odd number from 9, so that two bases fit, to 99; got 12"),
        ("arena:ctf+team=0", "needs 1 to 8 players per team, length ≥ 1 and repeat ≥ 1, got team=0"),
        ("arena:ctf+length=10+repeat=3", "length must be a multiple of repeat=3, got 10"),
        ("arena:ctf+speed=3", "unknown option 'speed'"),
        ("arena:ctf", "must be a multiple of the 4 seats"),
        ("arena:moba+team=6", "needs 1 to 5 heroes per team and 1 to 3 lanes, got team=6, lanes=3"),
        ("arena:moba+length=10", "needs repeat ≥ 1 and a length that is a multiple of it, got length=10, repeat=4"),
        ("arena:moba+randomize=1.5", "randomize must be from 0 to 1, got 1.5"),
        ("arena:moba+reward=score", "reward must be one of shaped, win; got score"),
    ],
)
def test_wrong_options_are_one_line(title, said):
    with pytest.raises(UserError) as raised:
        _ = Envs(title, 10).spec
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("title", "draw", "lane", "rate"),
    [("arena:ctf+repeat=3+length=9", draw_match, 6, 5.0), (LANES + "+length=9+repeat=3", draw_lanes, 6, 10.0)],
)
def test_a_pool_shows_the_match_of_a_lane(title, draw, lane, rate):
    with closing(Envs(title, 8).open(3)) as pool:
        go_on(pool, range(3))
        picture, found = pool.picture(lane)
        assert found == rate
        assert (picture == draw(pool.state()["game"], 1)).all()
        assert not (picture == pool.picture(0)[0]).all()


@pytest.mark.parametrize(
    ("env", "pictures", "shape"),
    [
        ("arena:ctf+size=9+length=12+actions=small", 13, (SIDE, SIDE + 2 * (VIEW + 2 * FRAME), 3)),
        pytest.param("arena:moba+team=1+lanes=1+length=40", 11, (240, 720, 3), marks=pytest.mark.long),
    ],
)
def test_an_evaluation_is_filmed(env, pictures, shape, tmp_path: Path):
    av = pytest.importorskip("av")
    given = {"env": env, "network": "mlp", "serial": True, "tensorboard": False}
    run = polyplay.train("ppo", run=str(tmp_path / "run"), steps=100, lanes=4, unroll=8, minibatches=1, **given)
    found = polyplay.evaluate(run.directory, episodes=4, video=True)
    with av.open(found["video"]) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert (len(frames), frames[0].shape) == (pictures, shape)


@pytest.mark.long  # it compiles all of them
@pytest.mark.parametrize("title", [CTF + "+actions=small", CTF + "+team=3", LANES])
def test_a_bot_has_every_public_name_and_plays_on_pools(title):
    envs, module = Envs(title, 12), ctf if title.startswith(CTF) else moba
    roles = ("level5", "attacker", "defender", "returner") if module is ctf else ()
    assert tuple(envs.spec.bots) == module.BOTS == ("level1", "level2", "level3", "level4", *roles)
    for name in module.BOTS:
        bot = load_bot(envs.spec, name)
        assert bot is getattr(module, name)
        seat_bot(bot, connect(envs, 0, 0), slice(4, 7))
