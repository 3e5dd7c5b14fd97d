"""Small games in which a policy learns within seconds.

Each game steps many lanes (parallel environments) at once with NumPy.

toy:catch      bsuite's catch, a paddle under a falling ball. Random play scores about -0.6, perfect play 1.
toy:memory     The first observation shows a cue, which the last action must name. With 2 cues, guesses score 0.
toy:rps        Rock-paper-scissors for two players.
toy:skirmish   Two units fight two others. Each of the four units has a player.

toy:module:Class is your own game, a dataclass that inherits Toy. A plus sign in a name sets an option. For example,
toy:memory+cues=4 sets `cues` to 4, and toy:module:Class+mask sets `mask` to True.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.numbers import SPLITMIX, mix
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs import base_pool, build, shared_rows, spaces
from polyplay.envs.lane import Seats
from polyplay.envs.pool import Envs, EnvSpec, Lanes, Pool, closest_names, lane_seeds, need, options
from polyplay.envs.spaces import ActionSpec, Discrete

Arrays = dict[str, np.ndarray]
Draw = Callable[[], np.ndarray]  # returns uniform random numbers in [0, 1), one per lane or match


class Toy(ABC):
    """Base class of small games. A game steps n episodes or matches at once, in arrays [n, …].

    Write your own game as a dataclass that inherits Toy. The fields of the dataclass are the game's options.

    If a game has several players, each has a seat number. Observations, rewards and flags are then arrays [n, seats,
    …], and the states include the array "here", bool [n, seats], which tells whether each seat plays. A seat may start
    late, and stops playing when it is terminated or truncated. A match is over when no seat plays.
    """

    classes: Mapping[str, int | tuple[int, ...]] = {}  # numbers of values of discrete observations, see EnvSpec
    legality: Spec | None = None  # fields of the masks that `legal` returns; None: every action is legal
    uses: Mapping[str, Iterable[int]] | None = (
        None  # for each further part of an action, the values of the first part that use it, see spaces
    )
    seats: int = 1  # number of players in a match
    teams: tuple[int, ...] = ()  # team number of each seat; empty: every seat is a separate team
    events: tuple[str, ...] = ()  # names of the event counts in rows of games with several players
    team_reward: bool = False  # whether rows of games with several players have a team reward
    bots: Mapping[str, str] = {}  # scripted players: name → "module:callable"

    @property
    @abstractmethod
    def obs(self) -> Spec:
        """Fields of one player's observation."""

    @property
    @abstractmethod
    def action(self) -> ActionSpec:
        """Action space of one player."""

    @abstractmethod
    def reset(self, draw: Draw, n: int) -> Arrays:
        """Return the states of `n` new episodes or matches: a dict of arrays [n, …] with fixed keys. `draw()` returns
        random numbers in [0, 1), one for each episode or match.
        """

    @abstractmethod
    def step(self, s: Arrays, action: Tree, draw: Draw) -> tuple[Any, ...]:
        """Make one step from the states `s`. Actions and results of seats that do not play are ignored.

        A game of one player returns (new states, reward [n], terminated [n], truncated [n]).

        A game of several players returns (new states, row). The row is a dict of reward, terminated and truncated, each
        [n, seats]. It also has `events` [n, seats, events] and `team_reward` [n, seats], if the class declares them.
        """

    @abstractmethod
    def see(self, s: Arrays) -> Tree:
        """Return observations [n, *obs.shape], or [n, seats, *obs.shape] if the game has several seats."""

    def legal(self, s: Arrays) -> Tree:
        """Return masks of legal actions, bool [n, (seats,) *legality.shape]. Only called if `legality` is not None."""
        raise NotImplementedError(f"{type(self).__name__} has a legality, but no legal()")

    def picture(self, s: Arrays, m: int) -> tuple[np.ndarray, float] | None:
        """Return an RGB image of match `m`, uint8 [H, W, 3], and images per second, or None if it has no images."""
        return None


def _check(toy: Any, good: bool, needs: str) -> None:
    """If `good` is false, raise UserError with the text `needs` and the game's options."""
    need(good, f"{needs}, got {', '.join(f'{name}={value!r}' for name, value in asdict(toy).items())}")


# Games of several players.


@dataclass(frozen=True)
class RockPaperScissors(Toy):
    """Rock-paper-scissors for two players. The actions are rock, paper and scissors, and the observation is always 1. A
    round gives reward 1 if won, -1 if lost, and 0 if drawn.
    """

    rounds: int = 1  # rounds per match

    def __post_init__(self) -> None:
        _check(self, self.rounds >= 1, "toy:rps needs rounds ≥ 1")

    seats = 2
    obs = Field((1,), "float32")
    action = Discrete(3)

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"here": np.ones((n, 2), bool), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, Batch]:
        age = s["age"] + 1
        end = np.repeat((age == self.rounds)[:, None], 2, 1)
        reward = (action - action[:, ::-1] + 1) % 3 - 1  # action a loses to a + 1 and beats a + 2, modulo 3
        return {"here": ~end, "age": age}, {"reward": reward, "terminated": end, "truncated": np.zeros_like(end)}

    def see(self, s: Arrays) -> np.ndarray:
        return np.ones((len(s["age"]), 2, 1), np.float32)


@dataclass(frozen=True)
class Skirmish(Toy):
    """Fight of two teams of two units, with one player per unit.

    In each step, all units shoot at once, each at one of the two enemies. A shot hits with probability `accuracy`. A
    unit that is hit once in a step loses 1 health. A unit that both enemies hit loses 4. A unit without health dies.
    When a unit dies, its seat (player) gets reward -1/2, and the seats that hit the unit in that step share 1/2. So a
    team's return is half its kills minus half its losses.

    A match is terminated when a team is dead, or both are. A match is truncated after `steps` steps. The second unit of
    each team arrives after `late` steps.

    Observation: the unit's number in its team (0 or 1), then the health of the unit, its teammate, the first enemy and
    the second enemy. Health is a fraction, and 0 if a unit is dead or has not arrived yet.
    Actions: shoot at the first enemy, or shoot at the second enemy.
    Events of a seat: hits, kills in which the seat had a part, death. Team reward: the mean reward of the two seats.

    Against the bot `opposite`, the bot `focus` wins 98.6 % of its matches, and random play wins two in three.
    """

    health: int = 8
    accuracy: float = 0.75
    steps: int = 100
    late: int = 0

    def __post_init__(self) -> None:
        good = self.health >= 1 and self.steps >= 1 and 0 < self.accuracy <= 1 and 0 <= self.late < self.health
        _check(self, good, "toy:skirmish needs health ≥ 1, 0 < accuracy ≤ 1, steps ≥ 1 and 0 ≤ late < health")

    seats = 4
    teams = (0, 0, 1, 1)
    events = ("hit", "kill", "death")
    team_reward = True
    bots = {name: f"{__name__}:Skirmish.{name}" for name in ("opposite", "focus")}  # noqa: RUF012
    obs = Field((5,), "float32")
    action = Discrete(2)

    def reset(self, draw: Draw, n: int) -> Arrays:
        here = np.ones((n, 4), bool)
        here[:, 1::2] = self.late == 0
        return {"here": here, "health": np.full((n, 4), self.health), "age": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, Batch]:
        here, age = s["here"], s["age"] + 1
        aim = (np.array([2, 2, 0, 0]) + action)[:, :, None] == np.arange(4)  # [n, shooter, target]
        lands = np.stack([draw() < self.accuracy for _ in range(4)], 1)
        hit = aim & (here & lands)[:, :, None] & here[:, None]
        hits = hit.sum(1)
        health = np.maximum(s["health"] - hits**2, 0)
        died = here & (health == 0)
        share = np.where(died, 0.5 / np.maximum(hits, 1), 0.0)
        reward = (hit * share[:, None]).sum(2) - 0.5 * died
        kills = (hit & died[:, None]).sum(2)
        shared = np.repeat(reward.reshape(-1, 2, 2).mean(2), 2, 1)
        row = {"reward": reward, "team_reward": shared, "events": np.stack([hit.sum(2), kills, died], 2)}
        beaten = ~(here & ~died).reshape(-1, 2, 2).any(2)  # whether a team is dead: [n, team]
        decided, late = np.broadcast_to(beaten.any(1)[:, None], here.shape), (age == self.steps)[:, None]
        row |= {"terminated": died | decided, "truncated": late & ~died & ~decided}
        here = (here & ~died) | ((age == self.late)[:, None] & (np.arange(4) % 2 == 1))
        return {"here": here & ~decided & ~late, "health": health, "age": age}, row

    def see(self, s: Arrays) -> np.ndarray:
        n, shown = len(s["age"]), (s["health"] * (s["here"] | (s["age"] >= self.late)[:, None])) / self.health
        order = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]])
        place = np.broadcast_to(np.arange(4)[:, None] % 2, (n, 4, 1))
        return np.concatenate([place, shown[:, order]], 2, dtype=np.float32)

    @staticmethod
    def opposite(obs: np.ndarray, mask: None = None) -> np.ndarray:
        """Return actions for `obs` [..., 5]: shoot at the enemy with the same number, or at the other if it is dead."""
        place = obs[..., 0] == 1
        opposite = np.where(place, obs[..., 4], obs[..., 3])
        return np.where(opposite > 0, place, ~place).astype(np.int64)

    @staticmethod
    def focus(obs: np.ndarray, mask: None = None) -> np.ndarray:
        """Return actions for obs [..., 5]: shoot at the weaker living enemy, or at the first of two equal ones."""
        first, second = obs[..., 3], obs[..., 4]
        return ((second > 0) & ((first == 0) | (second < first))).astype(np.int64)


NUMBER, DIGITS = re.compile(r"-?(\d+\.?\d*|\.\d+)"), 300  # a number in a name; its length limit, for int()


@dataclass(frozen=True)
class Catch(Toy):
    """Game in which a paddle must catch a falling ball.

    Observation: the flattened board, 1 at the ball and the paddle (255 with dtype uint8), and 0 in all other cells.
    Actions: left, stay, right.
    Reward: at the end, 1 if the ball is caught, else -1.
    """

    rows: int = 10
    columns: int = 5
    dtype: str = "float32"  # type of the observation: "float32" or "uint8"

    def __post_init__(self) -> None:
        good = self.rows >= 2 and self.columns >= 1 and self.dtype in ("float32", "uint8")
        _check(self, good, "toy:catch needs rows ≥ 2, columns ≥ 1 and dtype 'float32' or 'uint8'")

    action = Discrete(3)
    obs = property(lambda self: Field((self.rows * self.columns,), self.dtype))

    def reset(self, draw: Draw, n: int) -> Arrays:
        ball = (draw() * self.columns).astype(np.int64)
        return {"ball": ball, "row": np.zeros(n, np.int64), "paddle": np.full(n, self.columns // 2)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        paddle = np.clip(s["paddle"] + action - 1, 0, self.columns - 1)
        row = s["row"] + 1
        end = row == self.rows - 1
        reward = np.where(end, np.where(paddle == s["ball"], 1.0, -1.0), 0.0)
        return {"ball": s["ball"], "row": row, "paddle": paddle}, reward, end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        n = np.arange(len(s["ball"]))
        board = np.zeros((len(n), self.rows, self.columns), self.dtype)
        board[n, s["row"], s["ball"]] = board[n, -1, s["paddle"]] = 255 if self.dtype == "uint8" else 1
        return board.reshape(len(n), -1)


@dataclass(frozen=True)
class MemoryGame(Toy):
    """Game in which a player must remember a cue.

    The first observation shows the cue as one-hot. Then `delay` observations without the cue follow. The last element
    of an observation is a light, which is on only in the last observation. The action in this step is the answer. An
    answer equal to the cue gives reward 1, any other answer -1.
    """

    cues: int = 2
    delay: int = 3

    def __post_init__(self) -> None:
        _check(self, self.cues >= 2 and self.delay >= 1, "toy:memory needs cues ≥ 2 and delay ≥ 1")

    action = property(lambda self: Discrete(self.cues))
    obs = property(lambda self: Field((self.cues + 1,), "float32"))

    def reset(self, draw: Draw, n: int) -> Arrays:
        return {"cue": (draw() * self.cues).astype(np.int64), "row": np.zeros(n, np.int64)}

    def step(self, s: Arrays, action: np.ndarray, draw: Draw) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray]:
        row = s["row"] + 1
        end = row == self.delay + 1
        reward = np.where(end, np.where(action == s["cue"], 1.0, -1.0), 0.0)
        return {"cue": s["cue"], "row": row}, reward, end, np.zeros_like(end)

    def see(self, s: Arrays) -> np.ndarray:
        obs = np.zeros((len(s["cue"]), self.cues + 1), np.float32)
        start = np.flatnonzero(s["row"] == 0)
        obs[start, s["cue"][start]] = 1
        obs[:, -1] = s["row"] == self.delay
        return obs


TOYS: dict[str, type[Toy]] = {
    "catch": Catch,
    "memory": MemoryGame,
    "rps": RockPaperScissors,
    "skirmish": Skirmish,
}
# team games, imported only when used, because they import Numba
ARENAS = {"arena:ctf": "polyplay.games.ctf:CaptureTheFlag", "arena:moba": "polyplay.games.moba:LaneGame"}


def toy(envs: Envs) -> Toy:
    """Return the game that `envs` names, such as toy:catch or arena:moba+team=2+lanes=1. Raises UserError if the game,
    its module or an option does not exist.
    """
    kind, _, rest = envs.title.partition(":")
    name, *switches = rest.split("+")
    given, title = {**dict(map(switch, switches)), **envs.options}, f"{kind}:{name}"
    if title in ARENAS:
        made: Any = build.imported(ARENAS[title])
    elif kind == "arena":
        allowed = f"{', '.join(ARENAS)}, with options after a +: arena:ctf+size=21"
        raise UserError(f"--env {envs.title}: unknown arena; allowed: {allowed}")
    else:
        made = TOYS.get(name) or (own_class(name) if ":" in name else None)
    if made is None:
        known = [f"toy:{k}" for k in TOYS]
        near = closest_names(envs.title, known)
        raise UserError(f"--env: unknown toy {envs.title!r}{near}; allowed: {', '.join(known)}")
    return options(made, given, title)


def own_class(name: str) -> type[Toy]:
    """Return the class of a user's game, "module:Class". Raises UserError if it is not a Toy or lacks a method."""
    made: Any = build.imported(name)
    if not (isinstance(made, type) and issubclass(made, Toy) and is_dataclass(made)):
        raise UserError(f"--env: toy:{name} must be a dataclass that inherits {__name__}.Toy")
    if lacks := ", ".join(sorted(made.__abstractmethods__)):
        raise UserError(f"--env: toy:{name} lacks {lacks}, which {__name__}.Toy declares: define it")
    return made


def _try(game: Toy, spec: EnvSpec) -> None:
    """Check a game by a reset and a step of two matches. Raises UserError if a method raises, or returns wrong shapes
    or types.
    """
    n, rng, alone = 2, np.random.default_rng(0), game.seats == 1
    lead, draw = (n,) if alone else (n, game.seats), lambda: rng.random(n)
    states = _called(game.reset, draw, n)
    if not isinstance(states, dict):
        raise _refused(game.reset, type(states).__name__, f"a dict of arrays [{n}, …]")
    saved = {name: Field(np.shape(x)[1:], np.asarray(x).dtype.name) for name, x in states.items()}
    saved |= {} if alone else {"here": Field((game.seats,), "bool")}
    _fit(game.reset, states, saved, (n,))
    _fit(game.see, _called(game.see, states), spec.obs, lead)
    mask = None if spec.mask is None else _called(game.legal, states)
    if spec.mask is not None:
        _fit(game.legal, mask, spec.mask, lead)
        mask = tree.map(lambda m: m.reshape(-1, *m.shape[len(lead) :]), mask)
    drawn = spaces.action_sampler(spec.action, 0)(math.prod(lead), mask)
    action = tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), drawn)
    flags = {"reward": Field((), "float32"), "terminated": Field((), "bool"), "truncated": Field((), "bool")}
    found, parts = _called(game.step, states, action, draw), ("states", *flags) if alone else ("states", "row")
    if not isinstance(found, tuple) or len(found) != len(parts):
        raise _refused(game.step, type(found).__name__, f"a tuple: {', '.join(parts)}")
    _fit(game.step, found[0], saved, (n,))
    _fit(game.step, dict(zip(flags, found[1:], strict=True)) if alone else found[1], flags | spec.own_fields, lead)


def _called(method: Callable[..., Any], *given: Any) -> Any:
    """Call a method and return its result. Raises UserError if the method raises an exception."""
    try:
        return method(*given)
    except Exception as e:
        raise UserError(f"--env: {method.__qualname__}() raised {build.one_line(e)}") from e


def _fit(method: Callable[..., Any], given: Tree, want: Spec, lead: tuple[int, ...]) -> None:
    """Raise UserError if the names, shapes or types of a method's result differ from the fields `want`."""
    got = {path: np.asarray(x) for path, x in tree.leaves(given)}
    needs = {path: np.empty(lead + f.shape, f.dtype) for path, f in tree.leaves(want)}
    right = [
        path in got and got[path].shape == x.shape and np.can_cast(got[path].dtype, x.dtype, "same_kind")
        for path, x in needs.items()
    ]
    if not all(right) or len(got) > len(needs):
        shown, allowed = (", ".join(f"{k} {a.dtype} {[*a.shape]}".strip() for k, a in x.items()) for x in (got, needs))
        raise _refused(method, shown, allowed)


def _refused(method: Callable[..., Any], given: str, allowed: str) -> UserError:
    return UserError(f"--env: {method.__qualname__}() returned {given}; must be {allowed}")


def switch(word: str) -> tuple[str, bool | int | float | str]:
    """Parse an option in a name into (name, value). `mask` is True, `planes=4` a number, other values text."""
    name, equals, value = word.partition("=")
    if not equals:
        return name, True
    if NUMBER.fullmatch(value) and len(value) < DIGITS:
        return name, float(value) if "." in value else int(value)
    return name, value


def describe(envs: Envs) -> EnvSpec:
    """Return the EnvSpec of a toy game. Raises UserError if the name, an option or a user's game is wrong."""
    game = toy(envs)
    if not all(isinstance(leaf, Field) for _, leaf in tree.leaves(game.obs)) or not isinstance(game.seats, int):
        wrong = f"obs must be a Field or a tree of them, and seats an int; got {game.obs!r}, {game.seats!r}"
        raise UserError(f"--env: {envs.title}: {wrong}")
    action = spaces.conditional_actions(game.action, game.uses, f"{envs.title}: uses")
    text = {"environment": envs.title, "observation": spaces.describe_fields(game.obs)}
    text["actions"] = spaces.describe_actions(action)
    text |= {} if game.legality is None else {"action mask": "of the toy's own"}
    spec = EnvSpec(game.obs, action, describe=text, classes=game.classes, mask=game.legality)
    if game.seats > 1:
        spec = replace(spec, seats=game.seats, teams=game.teams or tuple(range(game.seats)), kinds=(0,) * game.seats)
        spec = replace(spec, events=game.events, team_reward=game.team_reward, bots=game.bots)
    if envs.title.count(":") > 1:
        _try(game, spec)
    return spec


def game_streams(seed: int, lane: int, n: int) -> np.ndarray:
    """Return initial states of n lanes' random streams, uint64 [n]. `lane`: number of the first lane in the run."""
    return lane_seeds(seed, lane, n).astype(np.uint64) * np.uint64(0xD1342543DE82EF95)  # streams lie far apart


def game_rng(counters: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Advance random streams by SplitMix64 (Steele et al. 2014). Return a number in [0, 1) for each."""
    counters[at] += SPLITMIX
    return (mix(counters[at]) >> np.uint64(11)) * 2.0**-53


class ArrayPool(base_pool.BasePool):
    """Pool of environments whose whole state is the arrays in `_arrays`."""

    _counters: np.ndarray  # states of the random streams, one per lane or match

    def _draw(self, at: np.ndarray) -> Draw:
        return lambda: game_rng(self._counters, at)

    def state(self) -> Batch:
        """Return copies of the pool's arrays."""
        return tree.map(np.copy, self._arrays)

    def load(self, state: Batch) -> None:
        tree.write(self._arrays, ..., state)


class ToyPool(ArrayPool):
    """Pool of toy games for one player. Lanes (parallel environments) step in send(), in the caller's thread."""

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs)
        self.game = toy(envs)
        self._counters = game_streams(seed, lane, envs.lanes)
        everyone = np.arange(envs.lanes)
        self._states = self.game.reset(self._draw(everyone), envs.lanes)
        self._begin(everyone, self._states)
        self._arrays |= {"game": self._states, "random": self._counters}

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        over = self._rows["over"][numbers]
        begin, live = numbers[over], numbers[~over]
        if live.size:
            self._play(live, tree.map(lambda a: a[~over], action))
        if begin.size:
            self._begin(begin, self.game.reset(self._draw(begin), begin.size))

    def _play(self, at: np.ndarray, action: Tree) -> None:
        before = {k: v[at] for k, v in self._states.items()}
        after, reward, terminated, truncated = self.game.step(before, action, self._draw(at))
        flags = {"terminated": terminated, "truncated": truncated & ~terminated, "over": terminated | truncated}
        self._write(at, after, {"reward": reward, **flags, "first": False})

    def _begin(self, at: np.ndarray, states: Arrays) -> None:
        self._write(at, states, shared_rows.first_row(self._rows))

    def _write(self, at: np.ndarray, states: Arrays, row: Batch) -> None:
        tree.write(self._states, at, states)
        masks = {"mask": self.game.legal(states)} if "mask" in self._rows else {}
        tree.write(self._rows, at, {"obs": self.game.see(states), **masks, **row})


# A pool of toys with several players: each lane is one player of a match. A match steps once all of its lanes have sent
# actions.


def connect(envs: Envs, seed: int, lane: int) -> Pool:
    """Return a pool of toy games. Raises UserError if the name or an option is wrong."""
    if envs.spec.seats == 1:
        return ToyPool(envs, seed, lane)
    return MatchPool(envs, toy(envs), seed, lane)


class MatchPool(ArrayPool):
    """Pool of toy games for several players. When the actions of all players of a match were sent, the match makes a
    step in send(), in the caller's thread.
    """

    def __init__(self, envs: Envs, game: Toy, seed: int, lane: int):
        self._table = shared_rows.seat_lanes(envs, seed, lane)
        super().__init__(envs, seating=self._table)
        self._asynchronous = True  # after send(), a lane is ready once its match has stepped
        self.game = game
        n = self._table.matches
        self._counters = game_streams(seed, lane, envs.lanes)[self._table.own[:, 0]]
        self._action = tree.zeros(spaces.fields(self.spec.action), (envs.lanes,))
        self._over, self._rests, self._held = np.zeros(n, bool), np.zeros(n, bool), np.zeros((), bool)
        everyone = np.arange(n)
        self._states = self.game.reset(self._draw(everyone), n)
        self._begin(everyone, self._states)
        self._arrays |= {"game": self._states, "random": self._counters, "action": self._action}
        self._arrays |= {"over": self._over, "rests": self._rests, "held": self._held}

    resting = property(lambda self: bool(self._rests.all()))

    def pause_matches(self, on: bool) -> None:
        """See Pool.pause_matches."""
        self._held[...] = on

    def picture(self, lane: int) -> tuple[np.ndarray, float] | None:
        """See Pool.picture."""
        return self.game.picture(self._states, int(self._table.match[lane]))

    def seats_of(self, lanes: Lanes) -> Seats:
        """See Pool.seats_of."""
        return Seats(self.game, self._states, self._table.match[lanes], self._table.seat[lanes])

    def _step(self, numbers: np.ndarray, action: Tree) -> None:
        tree.write(self._action, numbers, action)
        matches = self._whole_matches(numbers)
        ended = self._over[matches]
        for at, advance in ((matches[~ended], self._play), (matches[ended], self._rest if self._held else self._new)):
            if at.size:
                advance(at)
        self._where[self._table.own[matches]] = base_pool.READY

    def _play(self, at: np.ndarray) -> None:
        before = tree.at(self._states, at)
        after, row = self.game.step(before, tree.at(self._action, self._table.lanes[at]), self._draw(at))
        here = before["here"]
        row = {k: np.where(here if v.ndim == 2 else here[..., None], v, np.zeros_like(v)) for k, v in row.items()}
        row["truncated"] &= ~row["terminated"]
        self._over[at] = ~after["here"].any(1)
        self._write(at, after, {**row, "over": row["terminated"] | row["truncated"], "first": ~here})

    def _new(self, at: np.ndarray) -> None:
        self._begin(at, self.game.reset(self._draw(at), at.size))

    def _begin(self, at: np.ndarray, states: Arrays) -> None:
        self._table.draw(at)
        self._over[at] = self._rests[at] = False
        self._write(at, states, shared_rows.first_row(self._rows))

    def _rest(self, at: np.ndarray) -> None:
        self._rests[at] = True
        tree.write(self._rows, self._table.lanes[at], shared_rows.first_row(self._rows))

    def _write(self, at: np.ndarray, states: Arrays, row: Batch) -> None:
        tree.write(self._states, at, states)
        masks = {"mask": self._legal(states)} if "mask" in self._rows else {}
        tree.write(self._rows, self._table.lanes[at], {"obs": self.game.see(states), **masks, **row})

    def _legal(self, states: Arrays) -> Tree:
        """Return masks of legal actions. All actions are legal for seats (players) that do not play."""
        masks, here = self.game.legal(states), states["here"]
        return masks if here.all() else tree.map(lambda m: m | ~here.reshape(*here.shape, *[1] * (m.ndim - 2)), masks)
