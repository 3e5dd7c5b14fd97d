"""PettingZoo's environments: recognized, described, converted, trained by their names; padded where they differ."""

from __future__ import annotations

import importlib
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import polyplay
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from polyplay.envs import Discrete, Envs
from polyplay.envs.pettingzoo import AllAtOnce, pad, parallel_of
from polyplay.envs.spaces import action_sampler
from tests.envs import broken
from tests.envs.players import Scripted

PAD = ("polyplay.envs.pettingzoo:pad",)
SPREAD, ADVERSARY = "mpe2.simple_spread_v3:parallel_env", "mpe2.simple_adversary_v3:parallel_env"
TURNS, DEATHS = "pettingzoo.classic.tictactoe_v3:env", "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env"


def rows(envs: Envs, steps: int) -> list[dict[str, Any]]:
    """Copies of rows of random play."""
    found = []
    with closing(envs.open(0)) as pool:
        draw = action_sampler(pool.spec.action, 0)
        for _ in range(steps):
            lanes, row = pool.recv()
            found.append({k: np.array(v) for k, v in row.items() if k != "obs"})
            pool.send(lanes, draw(pool.lanes, row.get("mask")))
    return found


def test_a_parallel_environment_is_found_by_its_name_and_described():
    pytest.importorskip("mpe2")
    spec = Envs(SPREAD, 3).spec
    assert (spec.seats, spec.kinds, spec.teams) == (3, (0, 0, 0), ())
    assert (spec.obs, spec.action) == (Field((18,), "float32"), Discrete(5))
    assert spec.describe["players"] == "agent_0, agent_1, agent_2"


def test_a_turn_based_environment_gives_who_waits_one_legal_action():
    pytest.importorskip("pettingzoo")
    found = rows(Envs(TURNS, 2, inline=True), 40)
    for row in found:
        if not row["over"].any():
            waits = (row["mask"].sum(1) == 1) & row["mask"][:, 0]
            assert waits.any()
    assert found[0]["mask"].sum(1).tolist() == [9, 1], "the first player moves"
    assert found[1]["mask"].sum(1).tolist() == [1, 8]
    assert {tuple(row["reward"]) for row in found if row["over"].any()} <= {(1, -1), (-1, 1), (0, 0)}


def test_a_padded_environment_is_what_the_guide_says():
    pytest.importorskip("mpe2")
    spec = Envs(ADVERSARY, 3, wrappers=PAD, inline=True).spec
    assert (spec.seats, spec.kinds, spec.obs) == (3, (0, 1, 1), Field((12,), "float32"))
    with closing(Envs(ADVERSARY, 3, wrappers=PAD, inline=True).open(0)) as pool:
        obs = pool.recv()[1]["obs"]
    assert obs[:, 10:].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert not obs[0, 8:10].any()
    assert obs[1, 8:10].all()


def mixed(left: spaces.Space, right: spaces.Space) -> tuple[Any, list[dict]]:
    """A padded game of these actions, and what reaches the game."""
    game, acts = broken.Pair(), list[dict]()
    game.action_space = {"left": left, "right": right}.get  # type: ignore[method-assign]
    game.step = lambda actions: acts.append(actions) or broken.Pair.step(game, actions)  # type: ignore[method-assign]
    return pad(game), acts


def test_surplus_actions_are_masked_or_left_out():
    padded, acts = mixed(spaces.Discrete(2, start=5), spaces.Discrete(3))
    assert padded.action_space("left") == spaces.Discrete(3)
    masks = {agent: info["action_mask"].tolist() for agent, info in padded.reset(seed=0)[1].items()}
    assert masks == {"left": [True, True, False], "right": [True, True, True]}
    padded.step({"left": 1, "right": 2})
    assert acts == [{"left": 6, "right": 2}]
    padded, acts = mixed(spaces.Box(-1, 1, (1,)), spaces.Box(-2, 1, (2,)))
    padded.reset(seed=0)
    padded.step(dict.fromkeys(("left", "right"), np.array([-2, 0.5], np.float32)))
    assert {a: act.tolist() for a, act in acts[0].items()} == {"left": [-1], "right": [-2, 0.5]}


def test_what_cannot_be_padded_is_refused():
    with pytest.raises(UserError, match="pads seats; this has one player"):
        Envs("CartPole-v1", 1, wrappers=PAD).spec  # noqa: B018

    class Images(broken.Pair):
        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Box(0, 255, (3, 4 if agent == "left" else 5), np.uint8)

    with pytest.raises(UserError, match=r"pads vectors .*left sees Box.*SuperSuit"):
        Envs(Images, 2, wrappers=PAD).spec  # noqa: B018


def test_where_all_are_equal_nothing_is_added():
    padded, plain = (Envs(Scripted, 3, wrappers=how, inline=True).spec for how in (PAD, ()))
    for name in ("obs", "kinds", "teams", "events"):
        assert getattr(padded, name) == getattr(plain, name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "more"),
    [(SPREAD, {"lanes": 6}), (ADVERSARY, {"lanes": 6, "wrapper": PAD}), (TURNS, {"lanes": 4}), (DEATHS, {"lanes": 4})],
)
def test_known_games_pass_check_and_train(env: str, more: dict, tmp_path: Any):
    pytest.importorskip("mpe2")
    options = {"wrappers": PAD} if "wrapper" in more else {}
    assert polyplay.check(env, options=options, steps=200, measure=0.1).status == 0
    run = polyplay.train(
        "ppo", env=env, steps=1500, run=str(tmp_path / "run"), network="mlp", tensorboard=False, **more
    )
    assert run.exit_code == 0


def declared(module: str) -> Any:
    env = importlib.import_module(module).env()
    env.polyplay_teams = {agent: i % 2 for i, agent in enumerate(env.possible_agents)}
    env.polyplay_events, env.polyplay_bots = ("goal",), {"x": "a:b"}
    return env


@pytest.mark.parametrize("module", ["pettingzoo.classic.tictactoe_v3", "mpe2.simple_spread_v3"])
def test_what_a_turn_based_environment_says_of_its_players_stays_in_parallel(module):
    """Of both conversions."""
    pytest.importorskip(module)
    spec = Envs(declared, lanes=6, kwargs={"module": module}).spec
    assert (spec.teams, spec.sides) == ((0, 1, 0)[: spec.seats],) * 2
    assert (spec.events, spec.bots) == (("goal",), {"x": "a:b"})


@pytest.mark.parametrize(
    "module",
    [
        "pettingzoo.classic.tictactoe_v3",
        "pettingzoo.classic.connect_four_v3",
        "pettingzoo.classic.rps_v2",
        "mpe2.simple_spread_v3",
        "mpe2.simple_adversary_v3",
        "mpe2.simple_speaker_listener_v4",
    ],
)
def test_turn_based_environments_are_in_parallel_as_pettingzoo_has_them(module):
    """Step by step, by PettingZoo's own conversions; masks of who waits are ours."""
    env = pytest.importorskip(module).env
    conversions = pytest.importorskip("pettingzoo.utils.conversions")
    cycle = env().metadata.get("is_parallelizable")
    theirs = (conversions.aec_to_parallel if cycle else conversions.turn_based_aec_to_parallel)(env())
    random = np.random.default_rng(0)
    for ours in (parallel_of(env()), *([parallel_of(conversions.aec_to_parallel(env()))] if cycle else [])):
        assert type(ours) is AllAtOnce
        for seed in range(5):
            found, other = (one.reset(seed=seed) for one in (ours, theirs))
            _same(found[0], other[0])
            while theirs.agents:
                assert ours.agents == theirs.agents
                legal = {a: _mask(other, a, ours.action_space(a).n) for a in theirs.agents}
                actions = {a: int(random.choice(np.flatnonzero(mask))) for a, mask in legal.items()}
                found, other = ours.step(actions), theirs.step(actions)
                for one, two in zip(found[:4], other[:4], strict=True):
                    _same(one, two)
            assert not ours.agents


def _mask(given: tuple, agent: Any, n: int) -> np.ndarray:
    seen = given[0][agent]
    mask = seen["action_mask"] if isinstance(seen, dict) else given[-1][agent].get("action_mask")
    return np.ones(n, bool) if mask is None or not np.any(mask) else np.asarray(mask)


def _same(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    for agent, x in one.items():
        y = two[agent]
        if isinstance(x, dict):
            x, y = x["observation"], y["observation"]
        np.testing.assert_array_equal(x, y)


def test_players_without_a_space_are_told():
    class Bare(Scripted):
        def action_space(self, agent: str) -> Any:
            return None

    with pytest.raises(UserError, match="Bare: a: action_space is None, not a gymnasium space"):
        Envs(Bare, 3, inline=True).spec  # noqa: B018
