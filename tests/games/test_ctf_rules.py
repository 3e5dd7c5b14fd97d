"""The rules of capture the flag: scenes by hand, and both teams alike."""

from __future__ import annotations

import numpy as np
import pytest

from polyplay.games import ctf_maps, ctf_rules
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, HOME, SMALL, TURN, FlagMatches, World

State = dict[str, np.ndarray]
STILL, AHEAD, TAG = (2, 1, 1, 1, 0, 0), (2, 1, 1, 2, 0, 0), (2, 1, 1, 1, 1, 0)


def step(s: State, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, P = s["yaw"].shape
    reward, events = np.full((n, P), np.nan, np.float32), np.full((n, P, len(EVENTS)), np.nan, np.float32)
    ctf_rules.step_matches(FlagMatches.of(s), action, reward, events, np.zeros(P, bool))
    return reward, events


def scatter(rng: np.random.Generator, s: State) -> None:
    """Everybody somewhere near a base or a flag, so that much happens."""
    for m, grid in enumerate(s["grid"]):
        for p in range(s["yaw"].shape[1]):
            spots = np.concatenate([s["base"][m], s["flag_at"][m], s["at"][m]])
            spot = spots[rng.integers(len(spots))] + rng.normal(0, 0.7, 2)
            if (spot > 1.3).all() and (spot < len(grid) - 1.3).all() and not ctf_rules.hits_wall(grid, *spot):
                s["at"][m, p] = spot


class Room:
    """A match of two against two in one room, all out of each other's way and looking to the right."""

    def __init__(self, **seats: tuple[float, float]):
        self.s = s = World(size=13).arrays(1)
        s["grid"][:, [0, -1]] = s["grid"][:, :, [0, -1]] = 1
        s["base"][0] = s["flag_at"][0] = (1.5, 11.5), (11.5, 1.5)
        s["spawn"][0] = s["at"][0] = (3.5, 9.5), (1.5, 1.5), (9.5, 3.5), (11.5, 11.5)
        for name, at in seats.items():
            s["at"][0, int(name[1:])] = at

    def play(self, steps: int = 1, **actions: tuple[int, ...]) -> dict[str, list[float]]:
        """What happened in the last step: events by name, of those that happened to somebody; "reward" too."""
        action = np.array([[actions.get(f"s{p}", STILL) for p in range(4)]])
        for _ in range(steps):
            reward, events = step(self.s, action)
        told = {name: events[0, :, k].tolist() for k, name in enumerate(EVENTS) if events[0, :, k].any()}
        return told | ({"reward": reward[0].tolist()} if reward.any() else {})

    def carry(self, flag: int, by: int) -> None:
        self.s["flag"][0, flag], self.s["carrier"][0, flag] = CARRIED, by


@pytest.mark.parametrize(
    ("yaw", "action", "moved"),
    [
        (0, AHEAD, (0.21, 0)),
        (TURN // 4, AHEAD, (0, 0.21)),
        (0, (2, 1, 2, 1, 0, 0), (0, 0.21)),  # right of who looks right is down
        (0, (2, 1, 2, 2, 0, 0), (0.21 * 0.5**0.5, 0.21 * 0.5**0.5)),
        (0, (4, 1, 1, 2, 0, 0), (0.21 * np.cos(np.pi / 9), 0.21 * np.sin(np.pi / 9))),  # turned by 20° first
        (TURN // 2, AHEAD, (0, 0)),  # a wall is 0.3 to the left, and a body is 0.25 wide
        (TURN * 5 // 8, AHEAD, (0, -0.21 * 0.5**0.5)),  # along it
    ],
)
def test_a_step_leads_a_fifth_of_a_cell_and_not_into_walls(yaw, action, moved):
    room = Room(s0=(1.3, 6.5))
    room.s["yaw"][0, 0] = yaw
    room.play(s0=action)
    assert room.s["at"][0, 0] - (1.3, 6.5) == pytest.approx(moved)


def test_a_jump_ends_on_the_floor_and_no_pitch_is_beyond_the_steepest():
    room, heights = Room(), []
    for turn in range(20):
        room.play(s0=(2, 2, 1, 1, 0, int(turn == 0)))
        heights.append(float(room.s["z"][0, 0]))
    assert heights[:3] == pytest.approx([0.09, 0.168, 0.234])
    assert max(heights) == pytest.approx(0.384)
    assert heights[-1] == 0
    assert room.s["pitch"][0, 0] == 400


def test_a_tag_sends_the_nearest_opponent_in_its_way_back_and_drops_what_it_carried():
    room = Room(s0=(3.5, 6.5), s1=(4.5, 6.5), s2=(6.5, 6.7), s3=(8.5, 6.5))
    room.carry(0, 2)
    room.s["z"][0, 2] = room.s["rises"][0, 2] = 0.012  # it lands in this step
    told = room.play(s0=TAG)
    assert told == {"tagged_carrier": [1, 0, 0, 0], "was_tagged_carrying": [0, 0, 1, 0]}
    assert (room.s["flag"][0, 0], room.s["carrier"][0, 0]) == (DROPPED, -1)
    assert room.s["flag_at"][0, 0].tolist() == [6.5, 6.7]
    assert room.s["at"][0, 2].tolist() == [9.5, 3.5]
    assert room.s["yaw"][0, 2] == TURN * 3 // 8, "to the middle of the map"
    assert [bool(room.play(s0=TAG)) for _ in range(8)] == [False] * 7 + [True], "it reloads"
    room.s["loads"][:], room.s["grid"][0, 6, 6] = 0, 1
    assert not room.play(s0=TAG), "a wall"


@pytest.mark.parametrize(
    ("at", "pitch", "hits"),
    [
        ((6.5, 6.79), 0, True), ((6.5, 6.81), 0, False),  # half a body's width aside
        ((2.4, 6.5), 0, False),  # behind
        ((11.4, 6.5), 0, True), ((11.6, 6.5), 0, False),  # out of range
        ((6.5, 6.5), 50, False), ((4.5, 6.5), 50, True), ((6.5, 6.5), -50, True), ((8.5, 6.5), -150, False),
    ]
)  # fmt: skip
def test_what_a_tag_hits(at, pitch, hits):
    room = Room(s0=(3.5, 6.5), s2=at)
    room.s["pitch"][0, 0] = pitch
    assert room.play(s0=TAG) == ({"tagged_other": [1, 0, 0, 0], "was_tagged": [0, 0, 1, 0]} if hits else {})


def test_flags_are_picked_up_captured_and_returned_by_touch():
    room = Room(s0=(11.5, 2.0))
    told = room.play()
    assert told == {"picked_up": [1, 0, 0, 0], "teammate_picked_up": [0, 1, 0, 0], "opponent_picked_up": [0, 0, 1, 1]}
    assert (room.s["flag"][0, 1], room.s["carrier"][0, 1]) == (CARRIED, 0)
    room.s["at"][0, 0] = 1.5, 11.0
    room.s["flag"][0, 0], room.s["flag_at"][0, 0] = DROPPED, (5.5, 5.5)
    assert not room.play(), "not while one's own flag is away"
    room.s["at"][0, 1] = 5.5, 5.0
    told = room.play()  # returned, so captured in the same step
    assert {k: v for k, v in told.items() if v[:2] == [1, 0] or v[:2] == [0, 1]} == {
        "returned": [0, 1, 0, 0], "teammate_returned": [1, 0, 0, 0],
        "captured": [1, 0, 0, 0], "teammate_captured": [0, 1, 0, 0],
    }  # fmt: skip
    assert told["reward"] == [1, 1, -1, -1]
    assert room.s["score"][0].tolist() == [1, 0]
    assert room.s["flag"][0].tolist() == [HOME, HOME]
    assert room.s["flag_at"][0].tolist() == room.s["base"][0].tolist()


def turned(s: State) -> State:
    """The map turned by half, and the teams the other way round: the same match."""
    N, half = s["grid"].shape[1], s["yaw"].shape[1] // 2
    out = {k: np.roll(v, v.shape[1] // 2, 1) if k not in ("grid", "age") else v.copy() for k, v in s.items()}
    for name in ("base", "spawn", "at", "flag_at"):
        out[name] = N - out[name]
    out["yaw"] = (out["yaw"] + TURN // 2) % TURN
    out["carrier"] = np.where(out["carrier"] < 0, -1, (out["carrier"] + half) % (2 * half))
    return out


@pytest.mark.parametrize("team", [1, 3])
def test_teams_play_alike(team):
    """Steps of the turned match lead to the turned state, with everybody's events; all events happen."""
    rng, total, n = np.random.default_rng(team), np.zeros(len(EVENTS)), 20
    s = World(team=team, size=9).arrays(n)
    for m in range(n):
        ctf_maps.draw_map(np.uint64(m), m % 2 == 0, s["grid"][m], s["base"][m], s["spawn"][m])
    ctf_rules.begin_matches(FlagMatches.of(s))
    for turn in range(300):
        if turn % 10 == 0:
            scatter(rng, s)
            s["at"] = (np.floor(s["at"] * 1024) + 0.5) / 1024  # exact from either side, and no body just at a wall
        other, action = turned(s), np.asarray(SMALL)[rng.integers(len(SMALL), size=(n, 2 * team))]
        (reward, events), (their_reward, their_events) = step(s, action), step(other, np.roll(action, team, 1))
        assert (reward == np.roll(their_reward, team, 1)).all()
        assert (events == np.roll(their_events, team, 1)).all()
        again = turned(other)
        assert all(np.allclose(again[k], v, atol=1e-9) for k, v in s.items())
        total += events.sum((0, 1))
    assert all(times or (team == 1 and "mate" in event) for event, times in zip(EVENTS, total, strict=True))
