"""Full games and films, matches of teams and on boards: each equals those played one by one, whoever fails."""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import DependencyNotInstalled

from polyplay.acting import play
from polyplay.acting.actor import EpisodeCounter, MatchEnds
from polyplay.acting.worker import MatchResults
from polyplay.core.machine import install_command
from polyplay.core.tree import Batch, Field
from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs import Discrete, Envs
from polyplay.evaluation import evaluate as film_module
from polyplay.games import board_rules
from polyplay.games import records as kernels
from polyplay.games.boards import GAMES
from polyplay.games.toys import Skirmish, Toy
from polyplay.nets import factory
from polyplay.nets.policy import Player, Policy
from tests.envs.players import SCRIPT, Scripted
from tests.games.test_board_rules import legal_of

SPACE = gymnasium.spaces.Dict({"at": gymnasium.spaces.Box(-9, 9, (2,), np.float32), "n": gymnasium.spaces.Discrete(3)})


class Shown(gymnasium.Env):
    """Dict observations; renders 31×20 pictures whose red tells the step. An episode is 7 steps."""

    observation_space, action_space = SPACE, gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, picture: Any = (31, 20, 3)):
        self.render_mode, self.picture = render_mode, picture

    def _obs(self) -> dict[str, Any]:
        return {"at": np.zeros(2, np.float32), "n": 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        return self._obs(), 1.0, self.step_number == 7, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        shown = np.zeros(self.picture, np.uint8)
        shown[..., 0] = 30 * self.step_number
        return shown


def blind() -> gymnasium.Env:
    return Shown()


def envs(name: Any, **options: Any) -> Envs:
    return Envs(name, 2, options=options)


def film(path: Path, of: Envs, episodes: int = 3) -> list[tuple[float, int]]:
    policy = factory.make("auto" if of.title.startswith("ALE") else "mlp", replace(of, inline=True).spec)
    with closing(film_module.Film(path)) as made:
        return play.play_games(made.shown(of), policy, play.PlayOptions(episodes), [made])


def watch(path: Path) -> tuple[list[np.ndarray], float]:
    import av

    with av.open(str(path)) as file:
        rate = float(file.streams.video[0].average_rate or 0)
        return [f.to_ndarray(format="rgb24") for f in file.decode(video=0)], rate


def test_an_environment_with_dict_observations_is_filmed_as_it_renders(tmp_path: Path):
    assert film(tmp_path / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    pictures, rate = watch(tmp_path / "x.mp4")
    assert rate == 10
    assert len(pictures) == 8  # the first game alone, from its reset to its end
    assert pictures[0].shape == (30, 20, 3)  # H.264 has no odd sides
    assert [round(p[..., 0].mean() / 30) for p in pictures] == list(range(8))


def test_an_atari_game_is_filmed_as_it_is_seen(tmp_path: Path):
    of = replace(envs("ALE/Pong-v5", max_frames=40), lanes=2)
    film(tmp_path / "x.mp4", of, episodes=2)
    pictures, rate = watch(tmp_path / "x.mp4")
    assert rate == 15
    assert (len(pictures), pictures[0].shape) == (11, (420, 320, 3))
    ground, paddle = pictures[0][200, 20], pictures[0][200, 285]
    assert ground[0] > ground[2], "brown"
    assert paddle[1] > paddle[0], "green"
    still, rate = watch(tmp_path / "x.gif")
    assert (len(still), still[0].shape) == (11, (420, 320, 3))
    assert abs(rate - 15) <= 2, "a GIF counts hundredths of a second"


def broken(picture: Any, missing: type[Exception] | None = None, at: int = 0) -> type[Shown]:
    """Renders what `picture` says; from step `at` on it raises what is missing."""

    class Broken(Shown):
        def render(self) -> Any:
            if missing and self.step_number >= at:
                raise missing('pygame is not installed, run `pip install "gymnasium[classic-control]"`')
            return np.zeros(picture, np.uint8)

    return Broken


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (
            replace(envs(blind), inline=True),
            "--video: needs an environment that takes render_mode='rgb_array'; blind: could not be built",
        ),
        (envs(Shown, picture=(31, 20)), "--video: render() gave uint8 [31, 20]; it must give uint8 [H, W, 3]"),
        (envs(Shown, picture="x"), "--video: rendering failed: TypeError"),
        (
            envs(broken((8, 8, 3), DependencyNotInstalled)),
            f"--video: needs the package pygame; `{install_command('video')}`",
        ),
        (envs(broken((8, 8, 3), RuntimeError, at=5)), "--video: rendering failed: RuntimeError: pygame is not"),
        (envs(broken((0, 0, 3))), "--video: "),
    ],
)
def test_a_film_that_fails_is_told_once_and_leaves_no_file_and_all_games(
    tmp_path: Path, of: Envs, says: str, capsys: pytest.CaptureFixture
):
    assert film(tmp_path / "x.mp4", of) == [(7.0, 7)] * 3
    assert list(tmp_path.iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"polyplay: {says}")
    assert line.endswith("; there is no video, but the games are scored")


def test_games_without_images_are_played_without_a_film(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert len(film(tmp_path / "x.mp4", envs("toy:tests.toys:CartPole"))) == 3
    assert "--video: needs image observations [C, H, W] of uint8; this environment" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_costs_the_film_alone(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert film(tmp_path / "none" / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    assert "No such file or directory" in capsys.readouterr().err


def test_an_earlier_film_stays_where_the_next_one_fails(tmp_path: Path):
    film(tmp_path / "x.mp4", envs(Shown))
    before = (tmp_path / "x.mp4").read_bytes()
    film(tmp_path / "x.mp4", envs(broken((8, 8, 3), RuntimeError, at=3)))
    assert (tmp_path / "x.mp4").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gif", "x.mp4"]


def test_without_the_package_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setitem(sys.modules, "av", None)
    assert film(tmp_path / "x.mp4", envs(Shown)) == [(7.0, 7)] * 3
    assert f"--video: needs the package av; `{install_command('video')}`" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- ε, and whose games


class Constant(Policy):
    """A policy that always does the same, and says what it heard."""

    noise = 1

    def __init__(self, action: int):
        super().__init__()
        self.action, self.heard = action, []  # type: int, list[Any]

    def initial(self, lanes: int) -> Any:
        return {"action": torch.zeros(lanes, dtype=torch.int64)}

    def act(self, step: Any, state: Any) -> Any:
        self.heard.append(state["action"].clone())
        said = torch.full((len(step["first"]),), self.action)
        return {"action": said}, {"action": said}


Still = partial(Constant, 0)


class Counts(gymnasium.Env):
    """Rewards every action with its number; an episode is 8 steps."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 8
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), float(action), self.left == 0, False, {}


def mean_reward(epsilon: float, seed: int = 0) -> float:
    games = play.play_games(Envs(Counts, 4, inline=True), Constant(3), play.PlayOptions(32, seed, epsilon=epsilon))
    assert [length for _, length in games] == [8] * 32
    return sum(ret for ret, _ in games) / (32 * 8)


def test_epsilon_mixes_uniform_actions_with_the_policys_own():
    assert mean_reward(0.0) == 3.0
    assert mean_reward(1.0) == pytest.approx(1.5, abs=0.15)
    assert mean_reward(0.5) == pytest.approx(2.25, abs=0.2)
    assert mean_reward(0.5) == mean_reward(0.5)
    assert mean_reward(0.5) != mean_reward(0.5, seed=1)


def test_a_policy_that_hears_its_last_action_hears_the_one_that_was_done():
    policy = Constant(3)
    play.play_games(Envs(Counts, 4, inline=True), policy, play.PlayOptions(8, epsilon=1.0))
    assert {int(a) for heard in policy.heard[1:] for a in heard} == {0, 1, 2, 3}


def test_games_come_in_the_order_of_their_numbers_not_of_their_ends():
    games = [
        g for found in play.play_steps(Envs(Counts, 4, inline=True), Constant(1), play.PlayOptions(6)) for g in found
    ]
    assert sorted(g.number for g in games) == [0, 1, 2, 3, 4, 5]
    lanes = play.lanes_of(Envs(Counts, 4, inline=True), 40)
    assert lanes == play.LANES


BOT, BEST = play.scripted_player(Skirmish.opposite), play.scripted_player(Skirmish.focus)


def one_by_one(envs: Envs, bots: tuple[Any, Any], seed: int, place: int, matches: int) -> list[float]:
    """Points of the first team in the matches of one place, played alone."""
    seats = envs.spec.seats
    pool = Envs(envs.name, seats, options=envs.options).open(seed + play.SEED, place * seats)
    found, ret, over = list[float](), np.zeros(seats), np.zeros(seats, bool)
    while len(found) < matches:
        which, step = pool.recv()
        ret, over = ret + step["reward"], over | step["over"]
        if over.all():
            mine, theirs = (sum(ret[seat] for seat in range(seats) if envs.spec.sides[seat] == t) for t in (0, 1))
            found.append(1.0 if mine > theirs else 0.0 if mine < theirs else 0.5)
            ret, over = np.zeros(seats), np.zeros(seats, bool)
        chosen = [bots[envs.spec.sides[seat]](step["obs"][seat : seat + 1])[0] for seat in range(seats)]
        pool.send(which, np.array(chosen))
    return found


@pytest.mark.parametrize("name", ["toy:skirmish", "toy:skirmish+late=3", "toy:skirmish+steps=4"])
def test_matches_equal_those_played_one_by_one(name: str):
    envs = Envs(name, 4)
    points = play.play_both_sides(envs, BOT, BEST, 74, seed=5)[:37]
    for place in (0, 4, 5, 15):
        own = points[place::16].tolist()
        assert own == one_by_one(envs, (Skirmish.opposite, Skirmish.focus), 5, place, len(own))
    assert len(set(points)) > 1


def test_sides_are_swapped_exactly():
    envs = Envs("toy:skirmish+health=2", 4)
    mine, theirs = play.play_both_sides(envs, BOT, BEST, 40, 3), play.play_both_sides(envs, BEST, BOT, 40, 3)
    assert (mine[:20] + theirs[20:] == 1).all()
    assert (mine[20:] + theirs[:20] == 1).all()
    assert 0 < mine[:20].sum() + mine[20:].sum() < 20


def test_a_win_a_draw_and_a_loss():
    def always(action: int) -> Any:
        return play.scripted_player(lambda obs, mask: np.full(len(obs), action))

    envs = Envs("toy:rps", 2)
    for other, points in ((0, 0.5), (2, 1.0), (1, 0.0)):
        found = play.play_both_sides(envs, always(0), always(other), 6, 0)
        assert found.tolist() == [points] * 6


class Counting(Player):
    """A player with a memory: its action is the number of rows since the episode began."""

    def initial(self, n: int) -> Batch:
        return {"age": torch.full((n,), 7)}

    def act(self, inputs: Batch, state: Batch) -> tuple[Batch, Batch]:
        age = torch.where(inputs["first"], 0, state["age"] + 1)
        return {"action": age % 3}, {"age": age}


def test_a_memory_begins_anew_with_every_match():
    envs = Envs("toy:rps+rounds=2", 2)
    rock = play.scripted_player(lambda obs, mask: np.zeros(len(obs), np.int64))
    found = play.play_both_sides(envs, play.policy_player(Counting(), play.PlayOptions(1)), rock, 80, 0)
    assert found.tolist() == [1.0] * 80  # rock and paper; paper and scissors had lost


@dataclass(frozen=True)
class OneLegal(Toy):
    """In each seat only one of four actions is legal, the next one in every step."""

    seats, obs, action, legality = 2, Field((1,), "float32"), Discrete(4), Field((4,), "bool")

    def reset(self, draw: Any, n: int) -> Batch:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n, np.int64)}

    def legal(self, s: Batch) -> np.ndarray:
        return np.arange(4) == ((s["age"][:, None] + np.arange(2)) % 4)[..., None]

    def step(self, s: Batch, action: np.ndarray, draw: Any) -> tuple[Batch, Batch]:
        assert np.take_along_axis(self.legal(s), action[..., None], 2).all()
        end = np.repeat((s["age"] == 4)[:, None], 2, 1)
        row = {"reward": np.array([[1.0, 0.0]]).repeat(len(end), 0), "terminated": end, "truncated": ~end & end}
        return {"here": ~end, "age": s["age"] + 1}, row

    def see(self, s: Batch) -> np.ndarray:
        return np.zeros((len(s["age"]), 2, 1), np.float32)


def test_masks_are_kept():
    envs = Envs(f"toy:{__name__}:OneLegal", 2)
    found = play.play_both_sides(envs, play.random_player(0), play.random_player(1), 40, 0)
    assert found.tolist() == [1.0] * 20 + [0.0] * 20


class Apart(OneLegal):
    """Two a side, of whom the second seat leaves after its first step: seats share what their team gets."""

    seats, teams, team_reward = 4, (0, 0, 1, 1), True

    def reset(self, draw: Any, n: int) -> Batch:
        return {"here": np.ones((n, 4), bool), "age": np.zeros(n, np.int64)}

    def legal(self, s: Batch) -> np.ndarray:
        return np.ones((len(s["age"]), 4, 4), bool)

    def step(self, s: Batch, action: np.ndarray, draw: Any) -> tuple[Batch, Batch]:
        n, age = len(s["age"]), s["age"] + 1
        end = np.repeat((age == 3)[:, None], 4, 1) | (np.arange(4) == 1)
        shared = np.where((age == 2)[:, None], [3.0, 3.0, 2.0, 2.0], [0.0, 0.0, 1.0, 1.0])  # 3 against 4 in all
        paid = np.array([[9.0, 9.0, 0.0, 0.0]]).repeat(n, 0)  # to who has lost
        row = {"reward": paid, "team_reward": shared, "terminated": end, "truncated": end & ~end}
        return {"here": s["here"] & ~end, "age": age}, row

    def see(self, s: Batch) -> np.ndarray:
        return np.zeros((len(s["age"]), 4, 1), np.float32)


def test_the_team_reward_says_who_has_won_where_there_is_one():
    envs = Envs(f"toy:{__name__}:Apart", 4)
    found = play.play_both_sides(envs, play.random_player(0), play.random_player(1), 10, 0)
    assert found.tolist() == [0.0] * 5 + [1.0] * 5


class Selfish(Scripted):
    """Rows say nothing of teams."""

    def _info(self, agent: str) -> dict[str, Any]:
        return {k: v for k, v in super()._info(agent).items() if k != "team_reward"}


class Failing(Selfish):
    """Two players; `a` ends in step 1, `b` in step 3. Some matches fail in step 2."""

    possible_agents = ("a", "b")
    polyplay_teams = {"a": 0, "b": 1}  # noqa: RUF012
    failures = 0

    def _script(self) -> dict[str, tuple[int, int, bool, bool]]:
        return {"a": (0, 1, True, False), "b": (0, 3, True, False)}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        if self.at == 1 and Failing.failures:
            Failing.failures -= 1
            raise ValueError("it fails")
        return super().step(actions)


def results(env: Any, groups: int, rows: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """(groups of lanes in the seats, outcomes) of matches in which group g always plays action g."""
    envs = Envs(env, lanes=2 * groups, groups=groups, agents=groups, inline=True)
    pool, games, found = envs.open(1), EpisodeCounter(envs.lanes), []
    ctx = WorkerContext("act", 0, 1, 0, 3, Counters(1), RunControl())
    watched = MatchResults(pool, games, 2)
    for _ in range(rows * groups):
        lanes, step = pool.recv()
        games.count(ctx, np.arange(envs.lanes)[lanes], step, 0, -1)
        watched.watch(lanes, step)
        pool.send(lanes, np.full(2, lanes.start // 2))
        players, scores = watched.take()
        found += [(tuple(p), tuple(s)) for p, s in zip(players.tolist(), scores.tolist(), strict=True)]
    pool.close()
    return found


def test_outcomes_are_those_of_whole_matches_where_a_player_comes_late_or_never():
    """By the sums of Scripted's rewards, 10 · step + action."""
    found, seen = results(Selfish, 3, 80), Counter[int]()
    for (a, b, c), outcome in found:
        expected = []
        for script in SCRIPT:
            ret = dict.fromkeys("abc", 0.0)
            for agent, action in zip("abc", (a, b, c), strict=True):
                come, end, *_ = script.get(agent, (0, 0))
                ret[agent] = float(sum(10 * t + action for t in range(come + 1, end + 1)))
            expected.append((ret["a"] + ret["b"], ret["c"]))
        assert outcome in expected
        seen[expected.index(outcome)] += 1
    assert min(seen[i] for i in range(3)) >= 7
    assert len({players for players, _ in found}) == 6, "seats are drawn anew"


@pytest.mark.parametrize("failures", [0, 1, 5])
def test_a_match_that_failed_has_no_outcome_and_those_after_it_are_whole(failures):
    Failing.failures = failures
    found = results(Failing, 2, 60)
    assert Failing.failures == 0
    assert len(found) >= 2 * 60 // 4 - 2 * failures - 2
    assert all(outcome == (10.0 + a, 60.0 + 3 * b) for (a, b), outcome in found)


@dataclass(frozen=True)
class Flattered(Toy):
    """Whose actions are higher is paid more; the match is won by the other team, in its last step."""

    seats, teams, team_reward = 2, (0, 1), True
    obs, action = Field((1,), "float32"), Discrete(9)

    def reset(self, draw: Any, n: int) -> dict[str, np.ndarray]:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n)}

    def step(self, s: Any, action: np.ndarray, draw: Any) -> tuple[Any, Any]:
        end = np.repeat(s["age"][:, None] == 2, 2, 1)
        won = np.sign(action[:, ::-1] - action) * end
        row = {"reward": action.astype(float), "team_reward": won, "terminated": end, "truncated": np.zeros_like(end)}
        return {"here": ~end, "age": s["age"] + 1}, row

    def see(self, s: Any) -> np.ndarray:
        return np.zeros((len(s["age"]), 2, 1), np.float32)


def test_a_team_reward_says_who_has_won_whatever_was_paid_on_the_way():
    found = results(f"toy:{__name__}:Flattered", 2, 40)
    assert len(found) > 10
    assert all(outcome == (float(b > a) * 2 - 1, float(a > b) * 2 - 1) for (a, b), outcome in found if a != b)


def test_games_of_players_that_never_come_are_not_waited_for(monkeypatch):
    envs = Envs(Scripted, lanes=3, inline=True)
    spec, taken = envs.spec, []
    monkeypatch.setattr(play, "LANES", 3)
    for games in play.play_steps(envs, Still(), play.PlayOptions(9, 0)):  # type: ignore[arg-type]
        taken += games
    assert spec.seats == 3
    assert sorted(g.number for g in taken) == [0, 1, 2, 3, 4, 5, 6, 7], "the third match has no c, which is lane 2"


def test_a_match_of_a_tournament_that_failed_is_played_again():
    Failing.failures = 2
    envs = Envs(Failing, lanes=2, inline=True)
    bots = [play.scripted_player(lambda obs, mask, i=i: np.full(len(obs), i)) for i in (3, 0)]
    assert play.play_both_sides(envs, *bots, 12, seed=0).tolist() == [0.0] * 6 + [1.0] * 6
    assert Failing.failures == 0


def test_rows_of_one_turn_may_come_in_parts():
    ends, row = MatchEnds(np.array([[0, 1], [2, 3]])), {"over": np.zeros(2, bool)}
    first, later = {**row, "first": np.ones(2, bool)}, {**row, "first": np.zeros(2, bool)}
    over = {"over": np.ones(2, bool), "first": np.zeros(2, bool)}
    a, b = np.array([0, 2]), np.array([1, 3])
    turns = [(a, first), (b, first), (a, later), (b, first), (a, later), (b, later), (a, over), (b, over), (a, first)]
    for lanes, step in turns:
        assert not len(ends.watch(lanes, step)[0])
    assert ends.watch(b, first)[0].tolist() == [0, 1]


BOARD = GAMES["tic_tac_toe"]


def first_legal(records, random, at):
    return np.array([legal_of(BOARD, record)[0] for record in records[at]])


def mixed(records, random, at):
    """Some move, the same for the same position."""
    moves = [legal_of(BOARD, record) for record in records[at]]
    keys = [int(record @ np.arange(len(record))) for record in records[at]]
    return np.array([m[key % len(m)] for m, key in zip(moves, keys, strict=True)])


def random_starts(n: int) -> play.MatchStarts:
    """Each opening of three plies twice, once with either color."""
    rng = np.random.default_rng(3)
    openings, _ = play.draw_openings(
        BOARD, n, 3, lambda records: np.array([rng.choice(legal_of(BOARD, r)) for r in records])
    )
    return play.MatchStarts(np.repeat(openings, 2, 0), np.arange(2 * n) % 2 == 0)


def games_one_by_one(starts: play.MatchStarts) -> list[float]:
    """The plain twin: one game after the other."""
    points = []
    for record, own in zip(starts.records.copy(), starts.begins.tolist(), strict=True):
        result = kernels.GOES_ON
        while result == kernels.GOES_ON:
            who = first_legal if own else mixed
            result = board_rules.play(BOARD.numbers, record, int(who(record[None], None, np.arange(1))[0]))
            own = not own
        points.append(0.5 if result == kernels.DRAWN else float(not own))
    return points


@pytest.mark.parametrize("at_once", [1, 7, None])
def test_a_match_in_batches_equals_games_games_one_by_one(at_once):
    starts = random_starts(30)
    expected = games_one_by_one(starts)
    assert set(expected) == {0.0, 0.5, 1.0}
    assert play.match(BOARD, first_legal, mixed, starts, at_once=at_once).tolist() == expected


def test_no_more_games_go_on_than_may_and_a_match_ends_when_watch_says_so():
    over, sizes = [], []

    def watch(ended, moves):
        over.extend(ended)
        sizes.append(moves)
        return len(over) < 10

    points = play.match(BOARD, first_legal, mixed, random_starts(30), watch=watch, at_once=4)
    assert 10 <= (~np.isnan(points)).sum() == len(over) < 14
    assert set(sizes) == {4}, "those that ended made room"


def test_openings_are_positions_that_go_on():
    starts = random_starts(50)
    assert set((starts.records[:, kernels.CELLS :] != 0).sum(1).tolist()) == {3}
    at = np.arange(5)
    deep, moves = play.draw_openings(BOARD, 5, 9, lambda records: first_legal(records, None, at))
    assert (deep[:, kernels.CELLS :] != 0).sum(1).tolist() == [6] * 5, "the seventh move ends the game"
    assert moves.tolist() == [[0, 1, 2, 3, 4, 5, -1, -1, -1]] * 5


def test_who_gives_up_loses_and_everybody_hears_of_every_end():
    starts, heard = random_starts(30), []

    def gives_up_later(records, random, at):
        plies = np.array([kernels.ply(record) for record in records[at]])
        return np.where(plies >= 5, play.GIVES_UP, first_legal(records, random, at))

    def over(records, at):
        heard.extend((i, kernels.ply(records[i])) for i in at.tolist())

    points = play.match(BOARD, gives_up_later, mixed, starts, over=over)
    given_up = [i for i, ply in heard if ply in (5, 6)]
    assert sorted(i for i, _ in heard) == list(range(60))
    assert len(given_up) > 30
    assert all(points[i] == 0 for i, ply in heard if ply == 6), "its last move was made on four or five stones"
    reverse = play.match(BOARD, mixed, gives_up_later, play.MatchStarts(starts.records, ~starts.begins))
    assert reverse.tolist() == (1 - points).tolist()


@pytest.mark.parametrize("move", [0, -2, 9, 2**15])
def test_an_illegal_move_is_an_error_that_names_it(move):
    def wrong(records, random, at):
        return np.where(at == 1, move, first_legal(records, random, at))

    record = BOARD.new()
    board_rules.play(BOARD.numbers, record, 0)
    starts = play.MatchStarts(np.stack([record] * 3), np.ones(3, bool))
    said = f"game:tic_tac_toe: the %s made the illegal move {move} in game 1: x../.../..., o to move"
    with pytest.raises(ValueError, match=f"^{re.escape(said % 'player')}$"):
        play.match(BOARD, wrong, first_legal, starts)
    with pytest.raises(ValueError, match=f"^{re.escape(said % 'other player')}$"):
        play.match(BOARD, first_legal, wrong, play.MatchStarts(starts.records, ~starts.begins))
