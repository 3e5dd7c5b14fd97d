"""One environment and its rows on a board: a lane, or a match of several players.

A lane that is ordered to step after `terminated | truncated` is reset instead: that row is the first of its next
episode. One that raises is closed; the pool counts that, and orders it again: it is built and reset.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs import masks, pettingzoo, rules, saved_state, spaces
from polyplay.envs.build import build_env, imported, inspect_env, one_line
from polyplay.envs.pool import EPISODE_CUT, EnvSpec, Factory, Lanes, Pool, lane_seeds, title_of
from polyplay.envs.shared_rows import BROKEN, FAILED, NOTE, ROUNDED, UNBUILT, SharedRows
from polyplay.envs.spaces import SpaceViolation, fields

HERE = os.path.dirname(__file__) + os.sep  # the room envs/
RowWriter = Callable[..., None]  # of (observation, info, terminated, truncated), see Unit.writer
Allow = Callable[[float], None]
START = 60.0  # seconds that starting a process and building an environment may take at least


@dataclass(frozen=True)
class LaneJob:
    """What a worker needs; `maker` is cloudpickled (name, options)."""

    maker: bytes
    title: str
    spec: EnvSpec
    seed: int
    lane: int  # number of the pool's first lane in the run
    step_timeout: float


class Unbuilt(Exception):
    """An environment that could not be built at first: the user's mistake."""


class Unit(ABC):
    """One environment, and the row or rows that it writes on a board. `lane`: its number in orders and notes."""

    env: Any = None  # None: it is not built, or was closed
    stage = "build"  # the rule that an exception breaks now
    over = True  # it begins at its next turn
    seeded = False
    last: Tree = None  # the actions that were chosen last
    remark = ""  # about a row that is good
    remarked: frozenset[str] = frozenset()  # the rules of remarks so far

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Allow = lambda seconds: None):
        """allow: told of the seconds that what comes next may take."""
        self.job, self.make, self.board, self.lane, self.allow = job, make, board, lane, allow
        seating = board.seating
        lanes = [lane] if seating is None else seating.own[seating.match[lane]].tolist()
        numbers = ", ".join(str(job.lane + i) for i in lanes)
        self.who = f"{job.title}, lane{'s' * (len(lanes) > 1)} {numbers}"  # in messages

    @abstractmethod
    def advance(self) -> None:
        """Make the next row of every lane. Raises Unbuilt, SpaceViolation, and what the environment raises."""

    @abstractmethod
    def made(self, env: Any) -> None:
        """Get ready for an environment that was just built."""

    seed = property(lambda self: lane_seed(self.board, self.job, self.lane))  # of its next first reset

    def prepare(self) -> None:
        """Build the environment. Raises UserError, Unbuilt, SpaceViolation."""
        self.stage = "build"
        self.allow(max(START, self.job.step_timeout))
        try:
            self.env = build_env(self.make, self.job.title)
            rules.take(self.env, self, self.job.title)
            spec = inspect_env(self.env, self.job.title)
        except UserError as e:
            if self.board.faults[self.lane] == 0:
                raise Unbuilt(str(e)) from e
            raise
        want = self.job.spec
        if (spec.obs, spec.action, spec.seats) != (want.obs, want.action, want.seats):
            shown = "{0[observation]} / {0[actions]} of {1} players".format
            first, this = (shown(s.describe, s.seats) for s in (want, spec))
            raise SpaceViolation(f"declared {first} by the first environment, given {this} by this one")
        self.made(self.env)

    def writer(self, space: gym.Space, lane: int, method: Callable[[], Tree] | None = None) -> RowWriter:
        """A function that checks an observation of `space`, and the mask in it, in info or by a method, and writes both
        into a lane's row with these flags. It raises SpaceViolation.
        """
        shown, rows = masks.without_mask(space), self.board.rows
        inside = shown is not space
        write = spaces.observation_writer(shown, rows["obs"], lane)
        allow = masks.mask_writer(self.job.spec.action, rows.get("mask"), lane, inside, None if inside else method)
        masked = inside or "mask" in rows

        def show(obs: object, info: object, terminated: bool = False, truncated: bool = False) -> None:
            try:
                write(obs)
            except SpaceViolation as e:
                raise rules.final_observation_flaw(e, terminated) if terminated or truncated else e from None
            if masked or (isinstance(info, Mapping) and masks.KEY in info):
                allow(obs, info, terminated or truncated)

        return show

    def reset(self) -> tuple[Any, Any]:
        """What the environment's reset() returns; it is built before, where it is not."""
        if self.env is None:
            self.prepare()
        self.allow(self.job.step_timeout)
        self.stage = "reset"
        seed = None if self.seeded else self.seed
        found = rules.read_reset(self.env.reset(seed=seed))
        if seed is not None:
            check_generator(self, self.env, seed)
        self.seeded = True
        return found

    def say(self, rule: str, text: str, who: str = "") -> None:
        """Leave a remark about a rule that a good row touches: the first of its kind."""
        if rule not in self.remarked:
            self.remarked |= {rule}
            self.remark = f"{self.job.title}{who}: {text} {rules.rule_suffix(rule)}"

    def row(self, lane: int, reward: float, terminated: bool, truncated: bool, first: bool, over: bool) -> None:
        """All of a row but its observation."""
        rows = self.board.rows
        rows["reward"][lane] = reward
        rows["terminated"][lane], rows["truncated"][lane] = terminated, truncated
        rows["first"][lane], rows["over"][lane] = first, over

    def save(self) -> Batch:
        """What decides its future, without its rows. Raises Unsaveable, and what the environment raises."""
        self.allow(self.job.step_timeout)
        env = {} if self.env is None else {"env": saved_state.save_env(self.env)}
        return {"over": np.array(self.over), **env}

    def load(self, saved: Batch) -> bool:
        """Go on from there, who sits where included; it was reset before. False: there is no environment. Raises the
        same.
        """
        self.allow(self.job.step_timeout)
        if self.env is None or "env" not in saved:
            self.close()
            return False
        saved_state.load_env(self.env, saved["env"])
        self.over = bool(saved["over"])
        return True

    def close(self) -> None:
        """Close the environment, whatever it raises."""
        env, self.env = self.env, None
        rules.give_back(self)
        self.over, self.seeded, self.last = True, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()


def make_unit(job: LaneJob, *given: Any) -> Unit:
    """A lane, or a match where there are several players; given: as Unit's."""
    return (Match if job.spec.kinds else Lane)(job, *given)


def take_turn(unit: Unit) -> int:
    """Make the next row, or rows: the unit's number, or `~number` with a note on the board. An environment that raises
    is closed: the next turn begins it anew.
    """
    try:
        unit.advance()
    except Unbuilt as e:
        return _note(unit, UNBUILT, str(e))
    except SpaceViolation as e:
        return _note(unit, BROKEN, f"{unit.who}: {rules.rule_message(e)}")
    except BaseException as e:
        text = _report(unit, e)
        unit.close()
        return _note(unit, FAILED, text)
    if text := unit.remark:
        unit.remark = ""
        return _note(unit, ROUNDED, text)
    return unit.lane


def _note(unit: Unit, kind: int, text: str) -> int:
    unit.board.note(unit.lane, kind, text)
    return ~unit.lane


def _report(unit: Unit, e: BaseException) -> str:
    """One clear line, then the end of the environment's own traceback."""
    e = e.__cause__ if isinstance(e, UserError) and e.__cause__ is not None else e
    frames = traceback.extract_tb(e.__traceback__)
    own = [f for f in frames if not f.filename.startswith(HERE)] or frames
    trace = "".join(traceback.format_list(own[-12:]))[-(NOTE - 1024) :]
    last = None if unit.last is None else tree.map(lambda a: np.asarray(a).tolist(), unit.last)
    head = f"{unit.who} (seed {unit.seed}, last action {last}): "
    end = "".join(traceback.format_exception_only(e))[:500].strip()
    text = (head + one_line(e))[:480]
    return f"{text if rules.rule_of(text) else f'{text} {rules.rule_suffix(unit.stage)}'}\n{trace}{end}"


def lane_seed(board: SharedRows, job: LaneJob, lane: int) -> int:
    """Of a lane's first reset; another one after every restart and return, so that it doesn't run into the same fault,
    or play the same games.
    """
    again = int(board.faults[lane] + 1_000 * board.joins[lane])
    return int(lane_seeds(job.seed + 1_000_003 * again, job.lane + lane, 1)[0])


def check_generator(unit: Unit, env: object, seed: int) -> None:
    """Raises SpaceViolation: another environment of the pool, given another seed, draws from the same generator."""
    board = unit.board
    source = board.seeds[unit.lane] = rules.rng_of(env)
    twins = np.flatnonzero(board.seeds == source) if source not in (-1, seed) else ()
    if len(twins) > 1:
        a, b = (unit.job.lane + int(i) for i in twins[:2])
        text = f"lanes {a} and {b} got different seeds but draw from the same generator"
        raise SpaceViolation(f"{text}, of seed {source}" if source < 2**62 else text, "seed")


# Scripted players: they see what their seats see, or the game itself, and learn nothing.


class Seats(NamedTuple):
    """Where lanes sit in which matches, for bots that play by the state of the game."""

    game: Any
    states: Batch  # arrays [matches, …] of all of the pool's matches; only to be read
    match: np.ndarray  # int64 [n]: of each lane
    seat: np.ndarray  # int64 [n]


SeatedBot = Callable[[Tree, Tree | None], Tree]  # of observations [n, …] and masks, None without any: actions [n, …]


class StateBot(ABC):
    """A scripted player that plays by the state of the game."""

    @abstractmethod
    def __call__(self, obs: Tree, mask: Tree | None, seats: Seats) -> Tree:
        """Actions [n, …] of players at `seats`, of observations [n, …] and masks, None without any."""


Bot = SeatedBot | StateBot


def load_bot(spec: EnvSpec, name: str) -> Bot:
    """Raises UserError: its callable is not there, raises, or returns something else. One that plays by the state is
    tried by seat_bot.
    """
    bot: Bot = imported(spec.bots[name], "polyplay_bots")
    if not isinstance(bot, StateBot):
        _check_arguments(bot, f"{name}: {spec.bots[name]}")
        _try(bot, spec, 2, f"{name}: {spec.bots[name]}")
    return bot


def _check_arguments(bot: SeatedBot, name: str) -> None:
    """Raises UserError: it does not take observations and masks alone."""
    try:
        arguments = inspect.signature(bot)
    except (TypeError, ValueError):  # it is written in C, or can't be called: trying it says so
        return
    try:
        arguments.bind(None, None)
    except TypeError:
        state = f"an object whose class inherits {__name__}.StateBot, to play by the game's state"
        raise UserError(
            f"polyplay_bots: {name} takes {arguments}, allowed: (obs, mask), observations and masks; or {state}"
        ) from None


def seat_bot(bot: Bot, pool: Pool, lanes: Lanes) -> SeatedBot:
    """The bot on these lanes of the pool. Raises UserError: it plays by states that this pool does not have, raises, or
    returns something else.
    """
    if not isinstance(bot, StateBot):
        return bot
    name = title_of(bot)
    if pool.seats_of(lanes) is None:
        needs = "allowed: bots that play by observations, or a toy: or arena: environment of several players"
        raise UserError(f"polyplay_bots: {name} plays by the game's state, which these environments lack; {needs}")

    def play(obs: Tree, mask: Tree | None) -> Tree:
        seats = pool.seats_of(lanes)
        assert seats is not None
        return bot(obs, mask, seats)

    _try(play, pool.spec, len(range(pool.lanes)[lanes]) if isinstance(lanes, slice) else len(lanes), name)
    return play


def _try(bot: SeatedBot, spec: EnvSpec, n: int, name: str) -> None:
    """Raises UserError: it raises on n blank observations, or returns no actions for them."""
    mask = None if spec.mask is None else tree.map(lambda x: x | True, tree.zeros(spec.mask, (n,)))
    want = [(n, *field.shape) for _, field in tree.leaves(fields(spec.action))]
    try:
        given = [np.shape(x) for _, x in tree.leaves(bot(tree.zeros(spec.obs, (n,)), mask))]
    except Exception as e:
        raise UserError(f"polyplay_bots: {name} raised {one_line(e)}") from e
    if given != want:
        raise UserError(f"polyplay_bots: {name} returned actions of shape {given} for {n} players, allowed: {want}")


NO_INFO: Mapping[str, Any] = {}


class Lane(Unit):
    """One environment and its row."""

    cut = False  # the next row begins an episode of the same game

    def advance(self) -> None:
        """See Unit."""
        if self.over:
            obs, info = self.reset()
            self.show(obs, info)
            if near := rules.check_contains(self.env.observation_space, obs):
                self.say("bounds", near)
            self.over = self.cut = False
            self.row(self.lane, 0.0, False, False, True, False)
            return
        self.allow(self.job.step_timeout)
        self.last, self.stage = tree.at(self.board.action, self.lane), "step"
        obs, reward, terminated, truncated, info = rules.read_step(self.env.step(self.act(self.last)))
        self.show(obs, info, terminated, truncated)
        marked = info if isinstance(info, dict) else NO_INFO
        if terminated and not truncated and marked.get(rules.OLD_LIMIT):
            self.say("flags", rules.OLD_LIMIT_SEEN)
        if found := getattr(self.env, "polyplay_remark", None):  # (rule, text)
            self.env.polyplay_remark = None
            self.say(*found)
        first, cut, self.over = self.cut, EPISODE_CUT in marked, terminated or truncated
        self.cut = cut and not self.over
        self.row(self.lane, reward, terminated or cut, truncated, first, self.over)

    def made(self, env: Any) -> None:
        """See Unit."""
        set_lane = getattr(env, "polyplay_lane", None)
        if callable(set_lane):  # an environment that needs its lane's number in the run
            set_lane(self.job.lane + self.lane)
        self.act = spaces.action_reader(env.action_space)
        self.show = self.writer(env.observation_space, self.lane, masks.mask_method(env))

    def save(self) -> Batch:
        """See Unit."""
        return {**super().save(), "cut": np.array(self.cut)}

    def load(self, saved: Batch) -> bool:
        """See Unit."""
        if found := super().load(saved):
            self.cut, self.last = bool(saved["cut"]), tree.at(self.board.action, self.lane)
        return found

    def close(self) -> None:
        """See Unit."""
        super().close()
        self.cut = False


# A player that acted has a row. One that has died, or is not there yet, has a `first` row: no transition. The match is
# over when nobody is left; its next turn resets it, or lets it rest while the pool holds its matches.


class Match(Unit):
    """The players of one environment. Orders and notes call it by its first lane's number."""

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Allow = lambda seconds: None):
        assert board.seating is not None
        self.seating, self.match = board.seating, int(board.seating.match[lane])
        super().__init__(job, make, board, lane, allow)
        self.agents: list[pettingzoo.Agent] = []  # of the seats
        self.alive: list[bool] = []  # of each seat: its player can act
        self.gone: list[bool] = []  # its player's part has ended
        self.lanes: list[int] = []  # of the seats, in this match
        self._writers: dict[tuple[int, int], RowWriter] = {}  # by seat and lane

    def advance(self) -> None:
        """See Unit."""
        if not self.over:
            self._step()
        elif self.board.held[0]:
            self.board.resting[self.match] = True
            for lane in self.seating.own[self.match].tolist():
                self._absent(lane)
        else:
            self._begin()
            self.board.resting[self.match] = False

    # ---------------------------------------------------------------------------------------- its turns

    def made(self, env: Any) -> None:
        """See Unit."""
        self.agents = list(env.possible_agents)
        self.seen = [env.observation_space(agent) for agent in self.agents]
        self._act = [spaces.action_reader(env.action_space(agent)) for agent in self.agents]
        self._writers = {}

    def _begin(self) -> None:
        obs, infos = self.reset()
        self.seating.draw(np.array([self.match]))
        self.lanes = self.seating.lanes[self.match].tolist()
        here = self._here()
        self.alive, self.gone = [agent in here for agent in self.agents], [False] * len(self.agents)
        if not here:
            raise SpaceViolation("no agent is there after reset()", "agents")
        for seat, lane in enumerate(self.lanes):
            if self.alive[seat]:
                self._arrive(seat, obs, infos)
            else:
                self._absent(lane)
        self.over = False

    def _here(self) -> set[pettingzoo.Agent]:
        """The environment's agents of now. Raises SpaceViolation: someone whom it did not declare."""
        here = set(self.env.agents)
        if not here.issubset(self.agents):
            strangers = ", ".join(sorted(str(agent) for agent in here.difference(self.agents)))
            raise SpaceViolation(f"{strangers} in agents, but not in possible_agents", "agents")
        return here

    def _step(self) -> None:
        self.allow(self.job.step_timeout)
        board, playing = self.board.action, [seat for seat, alive in enumerate(self.alive) if alive]
        actions = {self.agents[i]: self._act[i](tree.at(board, self.lanes[i])) for i in playing}
        self.last, self.stage = {str(agent): action for agent, action in actions.items()}, "step"
        results = rules.step_parts(self.env.step(actions))
        here = self._here()
        for seat, agent in enumerate(self.agents):
            if self.alive[seat]:
                self._played(seat, results, agent in here)
            elif agent not in here:
                self._absent(self.lanes[seat])
            elif self.gone[seat]:
                raise SpaceViolation(f"{agent} is in agents again, though it has ended", "agents")
            else:
                self._arrive(seat, results[0], results[4])
                self.alive[seat] = True
        self.over = not any(self.alive)

    # ----------------------------------------------------------------------------------------- its rows

    def _played(self, seat: int, results: Any, here: bool) -> None:
        """The row of a player that acted; here: it is among the agents still. Raises SpaceViolation."""
        agent, (obs, rewards, terminations, truncations, infos) = self.agents[seat], results
        try:
            seen, reward = obs[agent], rules.read_reward(rewards[agent])
            terminated, truncated = terminations[agent], truncations[agent]
        except (KeyError, TypeError):
            text = f"step() gave no observation, reward or flag of {agent}, which acted"
            raise SpaceViolation(text, "players") from None
        terminated, truncated = rules.read_flag("terminated", terminated), rules.read_flag("truncated", truncated)
        over = terminated or truncated
        if not over and not here:
            raise SpaceViolation(f"{agent} left agents, but was neither terminated nor truncated", "agents")
        info = _of(infos, agent)
        self._show(seat, seen, info, terminated, truncated)
        if over:
            self.alive[seat], self.gone[seat] = False, True
        self._write(self.lanes[seat], reward, terminated, truncated, False, over, info)

    def _arrive(self, seat: int, obs: Any, infos: Any) -> None:
        """The first row of a player. Raises SpaceViolation."""
        agent = self.agents[seat]
        if not isinstance(obs, Mapping) or agent not in obs:
            raise SpaceViolation(f"{agent} is in agents, but was given no observation", "players")
        info = _of(infos, agent)
        self._show(seat, obs[agent], info)
        if near := rules.check_contains(self.seen[seat], obs[agent]):
            self.say("bounds", near, f", {agent}")
        self._write(self.lanes[seat], 0.0, False, False, True, False, NO_INFO)

    def _absent(self, lane: int) -> None:
        """The row of a seat without a player. Its observation stays."""
        if "mask" in self.board.rows:
            tree.map(lambda mask: mask[lane].fill(True), self.board.rows["mask"])
        self._write(lane, 0.0, False, False, True, False, NO_INFO)

    def _show(self, seat: int, obs: object, info: object, *flags: bool) -> None:
        key = seat, self.lanes[seat]
        if key not in self._writers:
            self._writers[key] = self.writer(self.seen[seat], key[1])
        try:
            self._writers[key](obs, info, *flags)
        except SpaceViolation as e:
            raise SpaceViolation(f"{self.agents[seat]}: {e}", e.rule) from None

    def _write(
        self, lane: int, reward: float, dead: bool, late: bool, first: bool, over: bool, info: Mapping[str, Any]
    ) -> None:
        rows, spec = self.board.rows, self.job.spec
        self.row(lane, reward, dead, late, first, over)
        if spec.events:
            rows["events"][lane] = pettingzoo.read_events(info, len(spec.events))
        if spec.team_reward:
            rows["team_reward"][lane] = rules.read_reward(info.get(pettingzoo.TEAM_REWARD, 0.0))

    def save(self) -> Batch:
        """See Unit."""
        return {**super().save(), "alive": np.array(self.alive), "gone": np.array(self.gone)}

    def load(self, saved: Batch) -> bool:
        """See Unit."""
        if found := super().load(saved):
            self.alive, self.gone = saved["alive"].tolist(), saved["gone"].tolist()
            self.lanes = self.seating.lanes[self.match].tolist()
        return found


def _of(infos: Any, agent: pettingzoo.Agent) -> Mapping[str, Any]:
    """An agent's info; nothing where there is none."""
    info = infos.get(agent) if isinstance(infos, Mapping) else None
    return info if isinstance(info, Mapping) else NO_INFO
