"""The example of Melting Pot's capture the flag: seats, pictures, rewards, ends and events, by a stand-in that has
Melting Pot's interface; and, where it is installed, that Melting Pot's own is the same.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyplay
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.games.ctf_rules import EVENTS as OURS

NAME, MODULE = "paintball__capture_the_flag", "examples.melting_pot"
CARRIER = ("zapped_flag_carrier", [b"dict", b"player_index", np.array(1.0)])


def zap(source: int, target: int) -> tuple[str, list[Any]]:
    return "zap", [b"dict", b"source", np.array(float(source)), b"target", np.array(float(target))]


def flag(what: str, player: int, team: bytes) -> tuple[str, list[Any]]:
    return f"flag_{what}", [b"dict", b"player_index", np.array(float(player)), b"team", team]


EVENTS = {  # of each step; players 1, 3, 5, 7 are red
    1: [("AvatarStarted", [b"str", b"success"]), flag("picked_up", 1, b"red"), zap(2, 3)],
    2: [zap(1, 8), CARRIER, zap(1, 6)],
    3: [flag("captured", 4, b"blue"), flag("returned", 7, b"red")],
}
SPEC = {"RGB": SimpleNamespace(shape=(88, 88, 3)), "READY_TO_SHOOT": SimpleNamespace(shape=())}


class Timestep(SimpleNamespace):
    def last(self) -> bool:
        return self.step_type == 2


class Substrate:
    """Three steps long. Its pixels are its seed, the player and the action that it took last, one a color."""

    def __init__(self, players: int, discount: float):
        self.seed, self.players, self.discount, self.closed = random.randint(1, 200), players, discount, False

    def reset(self) -> Timestep:
        self.at, self.seed = 0, self.seed + 1
        return self._timestep([0] * self.players, 1.0)

    def step(self, actions: list[int]) -> Timestep:
        assert not self.closed
        assert all(type(action) is int for action in actions)
        self.at += 1
        return self._timestep(actions, self.discount if self.at == 3 else 1.0)

    def _timestep(self, actions: list[int], discount: float) -> Timestep:
        view = np.zeros((88, 88, 3), np.uint8)
        seen = [
            {
                "RGB": view + np.array([self.seed, player, action], np.uint8),
                "READY_TO_SHOOT": np.array(player % 3 == 0.0),
            }
            for player, action in enumerate(actions)
        ]
        rewards = [np.array(player + self.at / 8) for player in range(self.players)]
        kind = 2 if self.at == 3 else min(self.at, 1)
        return Timestep(step_type=kind, reward=rewards, discount=discount, observation=seen)

    def events(self) -> list[tuple[str, Any]]:
        return EVENTS.get(self.at, [])

    def close(self) -> None:
        self.closed = True


def stand_in(built: list[Substrate], discount: float = 0.0) -> ModuleType:
    """The package `meltingpot`, as far as the example asks it."""

    def get_config(name: str) -> SimpleNamespace:
        assert name == NAME
        action, timestep = SimpleNamespace(num_values=9), SimpleNamespace(observation=SPEC)
        return SimpleNamespace(default_player_roles=("default",) * 8, action_spec=action, timestep_spec=timestep)

    def build(name: str, *, roles: tuple[str, ...]) -> Substrate:
        assert name == NAME
        built.append(Substrate(len(roles), discount))
        return built[-1]

    package = ModuleType("meltingpot")
    package.substrate = SimpleNamespace(get_config=get_config, build=build)  # type: ignore[attr-defined]
    return package


@pytest.fixture
def built() -> list[Substrate]:
    return []


@pytest.fixture
def example(built: list[Substrate], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example's module, with the stand-in."""
    monkeypatch.setitem(sys.modules, "meltingpot", stand_in(built))
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


def test_seats_of_a_team_are_in_a_row_and_see_play_and_earn_what_their_player_does(example: ModuleType):
    """Pictures have their colors first. Events are named as ours, so that the same --event-rewards mean the same."""
    spec = Envs(f"{MODULE}:CaptureTheFlag", 8, inline=True).spec
    assert spec.describe["players"] == "red_0, red_1, red_2, red_3, blue_0, blue_1, blue_2, blue_3"
    assert (spec.sides, spec.action, set(spec.events)) == ((0, 0, 0, 0, 1, 1, 1, 1), Discrete(9), set(OURS))
    assert spec.obs == {"rgb": Field((3, 88, 88), "uint8"), "ready": Field((1,), "float32")}
    env = example.CaptureTheFlag()
    env.reset(seed=1)
    obs, rewards, *_ = env.step({agent: np.int64(i) for i, agent in enumerate(env.possible_agents)})
    for i, (agent, player) in enumerate(zip(env.possible_agents, (0, 2, 4, 6, 1, 3, 5, 7), strict=True)):
        assert obs[agent]["rgb"][1:, 40, 7].tolist() == [player, i]
        assert (obs[agent]["ready"].tolist(), rewards[agent]) == ([player % 3 == 0], player + 1 / 8)


def test_events_are_counted_for_who_did_them_and_whom_they_befell(example: ModuleType):
    env = example.CaptureTheFlag()
    env.reset(seed=1)
    names = list[dict[str, list[str]]]()
    for _ in range(3):
        infos = env.step(dict.fromkeys(env.possible_agents, 0))[4]
        names.append(
            {agent: np.repeat(example.EVENTS, info["events"].astype(int)).tolist() for agent, info in infos.items()}
        )
    none = {agent: list[str]() for agent in env.possible_agents}
    opponents = {f"blue_{i}": ["opponent_picked_up"] for i in range(4)}
    assert names[0] == opponents | {
        "red_0": ["picked_up"],
        "red_1": ["teammate_picked_up", "was_tagged"],
        "red_2": ["teammate_picked_up"],
        "red_3": ["teammate_picked_up"],
        "blue_0": ["opponent_picked_up", "tagged_other"],
    }
    tagged = {"blue_3": ["was_tagged_carrying"], "blue_2": ["was_tagged"]}
    assert names[1] == none | tagged | {"red_0": ["tagged_carrier", "tagged_other"]}
    assert names[2]["blue_1"] == ["captured", "opponent_returned"]
    assert names[2]["red_3"] == ["returned", "opponent_captured"]
    assert names[2]["red_1"] == ["teammate_returned", "opponent_captured"]


@pytest.mark.parametrize(("discount", "over"), [(0.0, True), (1.0, False)])
def test_a_match_that_is_cut_off_is_truncated(example: ModuleType, monkeypatch, discount: float, over: bool):
    monkeypatch.setattr(example, "substrate", stand_in([], discount).substrate)
    env = example.CaptureTheFlag()
    env.reset(seed=1)
    ends = [env.step(dict.fromkeys(env.possible_agents, 0))[2:4] for _ in range(3)]
    assert [(any(dead.values()), any(late.values())) for dead, late in ends] == [(False, False)] * 2 + [
        (over, not over)
    ]
    assert env.agents == []


def test_a_seed_is_that_of_the_game_and_leaves_the_generator_alone(example: ModuleType, built: list[Substrate]):
    env, before = example.CaptureTheFlag(), random.getstate()
    seen = [env.reset(seed=seed)[0]["red_0"]["rgb"][0, 0, 0] for seed in (3, None, 9, 3)]
    assert seen[0] == seen[3] != seen[2]
    assert seen[1] == seen[0] + 1, "a further match of the same game"
    assert random.getstate() == before
    env.close()
    assert [one.closed for one in built] == [True] * 3


def test_ftw_trains_on_it(example: ModuleType, tmp_path: Path):
    given = {"preset": "quick", "agents": 2, "players": 2, "auxiliary": "reward", "core_size": 8, "network": "ftw"}
    given |= {"env": f"{MODULE}:CaptureTheFlag", "lanes": 8, "batch": 4, "unroll": 4, "steps": 32, "serial": True}
    run = polyplay.train("ftw", **given, ranges=("period=2",), event_rewards=("captured=2",), run=tmp_path)
    assert run.summary["steps"] >= 32


@pytest.mark.long
def test_melting_pots_own_is_as_the_stand_in():
    pytest.importorskip("meltingpot")
    example = importlib.import_module(MODULE)
    with closing(example.CaptureTheFlag()) as env:
        assert env.possible_agents == [f"{team}_{i}" for team in ("red", "blue") for i in range(4)]
        obs, _ = env.reset(seed=1)
        draw, happened = np.random.default_rng(1), np.zeros(len(example.EVENTS))
        for step in range(1, 1001):
            assert all(env.observation_space(agent).contains(seen) for agent, seen in obs.items())
            actions = {agent: draw.choice((1, 5, 7, 8)) for agent in env.agents}
            obs, _rewards, over, late, infos = env.step(actions)
            happened += sum(info["events"] for info in infos.values())
            assert (all(over.values()), any(late.values())) == (step == 1000, False)
    counts = dict(zip(example.EVENTS, happened, strict=True))
    assert counts["tagged_other"] == counts["was_tagged"] > 0
    assert counts["teammate_picked_up"] == 3 * counts["picked_up"]
    assert counts["opponent_picked_up"] == 4 * counts["picked_up"]
