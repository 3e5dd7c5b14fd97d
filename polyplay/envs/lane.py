"""Step one environment, and write its results into the rows of its pool's shared memory.

A lane is one player in an environment. An environment with several players is called a match, and has several lanes. A
row is the data of one step of a lane. A row with `terminated` or `truncated` ends an episode. The lane's next step
resets the environment, and gives the first row of the next episode. If an environment raises an exception, it is
closed, and the pool counts a fault. The lane's next step then builds a new environment.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Batch, Tree
from polyplay.envs import masks, pettingzoo, rules, saved_state
from polyplay.envs.build import build_env, imported, inspect_env, one_line
from polyplay.envs.images import image_layout
from polyplay.envs.pool import EPISODE_CUT, EnvSpec, Factory, Lanes, Pool, lane_seeds, title_of
from polyplay.envs.rules import MOST, ROUNDING, SHOWN
from polyplay.envs.shared_rows import BROKEN, FAILED, FLAGS, NOTE, ROUNDED, UNBUILT, SharedRows, first_row
from polyplay.envs.spaces import SpaceViolation, Whole, fields, inner_path, leaf_of, place_of, subspaces

HERE = os.path.dirname(__file__) + os.sep  # the folder envs/
RowWriter = Callable[..., None]  # takes (observation, info, reward, terminated, truncated, first, over)
Allow = Callable[[float], None]
MAPPINGS, FLOATS = (dict, Mapping), (float, np.floating)  # types for isinstance, the usual one first: an ABC is slower
START = 60.0  # shortest time limit, in seconds, for starting a process and building an environment


@dataclass(frozen=True)
class LaneJob:
    """Data from which a process makes its lanes. maker: the environment's (name, options), pickled by cloudpickle."""

    maker: bytes
    title: str
    spec: EnvSpec
    seed: int
    lane: int  # number of the pool's first lane in the run
    step_timeout: float
    progress: Any = None  # the run's progress, see Envs


class Unbuilt(Exception):
    """Raised when the first build of an environment fails."""


class Unit(ABC):
    """One environment, with its rows in shared memory. `lane`: its lane, or the first lane of its match."""

    env: Any = None  # None: not built, or closed
    stage = "build"  # operation in progress, named after the rule that its exception breaks
    over = True  # whether the next turn resets the environment
    seeded = False
    last: Tree = None  # the last action; in a match, the last actions
    remark = ""  # a warning about a valid row, read by the pool
    remarked: frozenset[str] = frozenset()  # rules about which a remark was made

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Allow = lambda seconds: None):
        """`allow`: function that is called before each operation with the operation's time limit in seconds."""
        self.job, self.make, self.board, self.lane, self.allow = job, make, board, lane, allow
        seating = board.seating
        lanes = [lane] if seating is None else seating.own[seating.match[lane]].tolist()
        numbers = ", ".join(str(job.lane + i) for i in lanes)
        self.who = f"{job.title}, lane{'s' * (len(lanes) > 1)} {numbers}"  # name in messages

    @abstractmethod
    def advance(self) -> None:
        """Step the environment, or reset it if its episode has ended. Then write the next row of each lane. Raises
        Unbuilt, SpaceViolation, or an exception of the environment.
        """

    @abstractmethod
    def made(self, env: Any) -> None:
        """Prepare to convert the actions and observations of the new environment `env`."""

    seed = property(lambda self: lane_seed(self.board, self.job, self.lane))  # of the environment's next seeded reset

    def prepare(self) -> None:
        """Build the environment. Raises Unbuilt if the first build fails, and UserError if a later build fails. Raises
        SpaceViolation if the environment's spaces differ from the declared ones.
        """
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
        """Return a function that checks an observation and its mask of legal actions, and writes them into a lane's
        row. The mask is in the observation, in info, or returned by `method`. The function raises SpaceViolation.
        """
        shown, rows = masks.without_mask(space), self.board.rows
        inside = shown is not space
        write = observation_writer(shown, rows["obs"], lane)
        allow = masks.mask_writer(self.job.spec.action, rows.get("mask"), lane, inside, None if inside else method)
        masked = inside or "mask" in rows
        rewards, terminations, truncations, firsts, overs = (rows[name].data for name in ("reward", *FLAGS))

        def show(
            obs: object, info: object, reward: float, terminated: bool, truncated: bool, first: bool, over: bool
        ) -> None:
            try:
                write(obs)
            except SpaceViolation as e:
                raise final_observation_flaw(e, terminated) if over else e from None
            if masked or (isinstance(info, MAPPINGS) and masks.KEY in info):
                allow(obs, info, over)
            rewards[lane], terminations[lane], truncations[lane] = reward, terminated, truncated
            firsts[lane], overs[lane] = first, over

        return show

    def reset(self) -> tuple[Any, Any]:
        """Reset the environment, built first if necessary. Return observation and info. Raises SpaceViolation."""
        if self.env is None:
            self.prepare()
        self.allow(self.job.step_timeout)
        self.stage = "reset"
        seed = None if self.seeded else self.seed
        found = self.env.reset(seed=seed)
        if not isinstance(found, tuple | list) or len(found) != 2:
            old = "" if isinstance(found, tuple) else ", as gym's before 0.26 did"
            given = f"{rules.describe_value(found)}{old}"
            raise SpaceViolation(f"reset() must return (observation, info), given {given}", "reset")
        if seed is not None:
            check_generator(self, self.env, seed)
        self.seeded = True
        return found[0], found[1]

    def say(self, rule: str, text: str, who: str = "") -> None:
        """Keep a warning for the pool. Only the first warning about each rule is kept."""
        if rule not in self.remarked:
            self.remarked |= {rule}
            self.remark = f"{self.job.title}{who}: {text} {rules.rule_suffix(rule)}"

    def save(self) -> Batch:
        """Return the environment's state, without rows. Raises Unsaveable, or an exception of the environment."""
        self.allow(self.job.step_timeout)
        env = {} if self.env is None else {"env": saved_state.save_env(self.env)}
        return {"over": np.array(self.over), **env}

    def load(self, saved: Batch) -> bool:
        """Restore a saved state in an environment that was reset. Return False if the environment or the state is
        missing. Raises the same exceptions as `save`. Call this method after the pool has restored its arrays.
        """
        self.allow(self.job.step_timeout)
        if self.env is None or "env" not in saved:
            self.close()
            return False
        saved_state.load_env(self.env, saved["env"])
        self.over = bool(saved["over"])
        return True

    def close(self) -> None:
        """Close the environment, and ignore its exceptions."""
        env, self.env = self.env, None
        rules.give_back(self)
        self.over, self.seeded, self.last = True, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()


def make_unit(job: LaneJob, *given: Any) -> Unit:
    """Make a Match if the environment has several players, else a Lane."""
    return (Match if job.spec.kinds else Lane)(job, *given)


def take_turn(unit: Unit) -> int:
    """Step a unit (a lane or a match), and write its rows. Return the number of its first lane.

    If the unit left a message in the pool's shared memory, return `~number` instead. If the environment raised an
    exception, it is closed, and the next call builds a new environment.
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
    """Format an environment's exception as one line, followed by the end of its traceback."""
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
    """Return the seed of a lane's next seeded reset. After a fault or an absence, a lane gets a new seed."""
    again = int(board.faults[lane] + 1_000 * board.joins[lane])
    return int(lane_seeds(job.seed + 1_000_003 * again, job.lane + lane, 1)[0])


def check_generator(unit: Unit, env: object, seed: int) -> None:
    """Raises SpaceViolation if two lanes of the pool have different seeds, but share a random generator."""
    board = unit.board
    source = board.seeds[unit.lane] = rules.rng_of(env)
    twins = np.flatnonzero(board.seeds == source) if source not in (-1, seed) else ()
    if len(twins) > 1:
        a, b = (unit.job.lane + int(i) for i in twins[:2])
        text = f"lanes {a} and {b} got different seeds but draw from the same generator"
        raise SpaceViolation(f"{text}, of seed {source}" if source < 2**62 else text, "seed")


# Scripted players, which do not learn. They play by their seats' observations, or by the state of the game.


class Seats(NamedTuple):
    """States of all matches, and the match and seat (place of a player) of n lanes. Scripted players read them."""

    game: Any
    states: Batch  # arrays [matches, …] of all matches of the pool; read-only
    match: np.ndarray  # int64 [n]: the match of each lane
    seat: np.ndarray  # int64 [n]: the seat of each lane


SeatedBot = Callable[[Tree, Tree | None], Tree]  # observations [n, …], masks or None → actions [n, …]


class StateBot(ABC):
    """A scripted player that sees the state of the game, not only observations."""

    @abstractmethod
    def __call__(self, obs: Tree, mask: Tree | None, seats: Seats) -> Tree:
        """Return actions [n, …] of the players at `seats`. obs: observations [n, …]. mask: legal actions, or None."""


Bot = SeatedBot | StateBot


def load_bot(spec: EnvSpec, name: str) -> Bot:
    """Load a bot (scripted player) by name. Raises UserError if the bot is missing, raises an exception, or does not
    return actions. A StateBot is tested later, by seat_bot.
    """
    bot: Bot = imported(spec.bots[name], "polyplay_bots")
    if not isinstance(bot, StateBot):
        _check_arguments(bot, f"{name}: {spec.bots[name]}")
        _try(bot, spec, 2, f"{name}: {spec.bots[name]}")
    return bot


def _check_arguments(bot: SeatedBot, name: str) -> None:
    """Raises UserError if the bot does not take two arguments, observations and masks."""
    try:
        arguments = inspect.signature(bot)
    except (TypeError, ValueError):  # written in C, or not callable, which `_try` reports
        return
    try:
        arguments.bind(None, None)
    except TypeError:
        state = f"an object whose class inherits {__name__}.StateBot, to play by the game's state"
        raise UserError(
            f"polyplay_bots: {name} takes {arguments}, allowed: (obs, mask), observations and masks; or {state}"
        ) from None


def seat_bot(bot: Bot, pool: Pool, lanes: Lanes) -> SeatedBot:
    """Return a function that chooses the actions of the pool's `lanes` by the bot (scripted player). Raises UserError
    if the bot raises an exception or does not return actions, or if the pool lacks the states that a StateBot needs.
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
    """Raises UserError if the bot raises an exception on n blank observations, or does not return n actions."""
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
    """One environment with one player, which has one row in shared memory."""

    cut = False  # whether the next row starts an episode in the same game

    def advance(self) -> None:
        """See Unit."""
        if self.over:
            obs, info = self.reset()
            self.show(obs, info, 0.0, False, False, True, False)
            if near := check_contains(self.env.observation_space, obs):
                self.say("bounds", near)
            self.over = self.cut = False
            return
        self.allow(self.job.step_timeout)
        self.last, self.stage = self.chosen, "step"
        obs, reward, terminated, truncated, info = read_step(self.env.step(self.act(self.chosen)))
        marked, over = info if isinstance(info, dict) else NO_INFO, terminated or truncated
        cut = EPISODE_CUT in marked
        self.show(obs, info, reward, terminated or cut, truncated, self.cut, over)
        self.over, self.cut = over, cut and not over
        if terminated and not truncated and marked.get(rules.OLD_LIMIT):
            self.say("flags", rules.OLD_LIMIT_SEEN)
        if terminated and truncated and rules.is_blank(self.board.rows["obs"], self.lane):
            self.say("final-observation", rules.BLANK_END)
        if found := getattr(self.env, "polyplay_remark", None):  # found is (rule, text)
            self.env.polyplay_remark = None
            self.say(*found)

    def made(self, env: Any) -> None:
        """See Unit."""
        set_lane = getattr(env, "polyplay_lane", None)
        if callable(set_lane):  # for environments that need the lane's number in the run
            set_lane(self.job.lane + self.lane)
        self.act, self.chosen = action_reader(env.action_space), tree.at(self.board.action, (self.lane, ...))
        self.show = self.writer(env.observation_space, self.lane, masks.mask_method(env))

    def save(self) -> Batch:
        """See Unit."""
        return {**super().save(), "cut": np.array(self.cut)}

    def load(self, saved: Batch) -> bool:
        """See Unit."""
        if found := super().load(saved):
            self.cut, self.last = bool(saved["cut"]), self.chosen
        return found

    def close(self) -> None:
        """See Unit."""
        super().close()
        self.cut = False


# A player that acted gets an ordinary row. A player that has ended or not yet arrived gets a `first` row, which no
# transition leads to. The match is over when no player is left. Its next step resets it. While the pool holds its
# matches (see Pool.pause_matches), the match rests instead.


class Match(Unit):
    """One environment with several players, which have a row each. `lane` is the first lane of the match."""

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Allow = lambda seconds: None):
        assert board.seating is not None
        self.seating, self.match = board.seating, int(board.seating.match[lane])
        super().__init__(job, make, board, lane, allow)
        self.agents: list[pettingzoo.Agent] = []  # agent of each seat
        self.alive: list[bool] = []  # by seat: whether its player can act
        self.gone: list[bool] = []  # by seat: whether its player has ended
        self.lanes: list[int] = []  # lane of each seat in the current game
        self._writers: dict[tuple[int, int], RowWriter] = {}  # (seat, lane) → function that writes the row

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

    # -------------------------------------------------------------------------------------------- turns

    def made(self, env: Any) -> None:
        """See Unit."""
        self.agents = list(env.possible_agents)
        self.seen = [env.observation_space(agent) for agent in self.agents]
        self._act = [action_reader(env.action_space(agent)) for agent in self.agents]
        self._writers = {}

    def _begin(self) -> None:
        obs, infos = self.reset()
        self.seating.draw(np.array([self.match]))
        self.lanes = self.seating.lanes[self.match].tolist()
        here = self._here()
        self.alive, self.gone = [agent in here for agent in self.agents], [False] * len(self.agents)
        if not here:
            raise SpaceViolation("agents is empty after reset()", "agents")
        for seat, lane in enumerate(self.lanes):
            if self.alive[seat]:
                self._arrive(seat, obs, infos)
            else:
                self._absent(lane)
        self.over = False

    def _here(self) -> set[pettingzoo.Agent]:
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
        results = step_parts(self.env.step(actions))
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

    # --------------------------------------------------------------------------------------------- rows

    def _played(self, seat: int, results: Any, here: bool) -> None:
        """Write the row of a player that acted. `here`: whether it is still in `agents`. Raises SpaceViolation."""
        agent, (obs, rewards, terminations, truncations, infos) = self.agents[seat], results
        try:
            seen, reward = obs[agent], read_reward(rewards[agent])
            terminated, truncated = terminations[agent], truncations[agent]
        except (KeyError, TypeError):
            text = f"step() gave no observation, reward or flag of {agent}, which acted"
            raise SpaceViolation(text, "players") from None
        terminated, truncated = read_flag("terminated", terminated), read_flag("truncated", truncated)
        over = terminated or truncated
        if not over and not here:
            raise SpaceViolation(f"{agent} left agents, but was neither terminated nor truncated", "agents")
        info = _of(infos, agent)
        self._show(seat, seen, info, reward, terminated, truncated, False, over)
        if over:
            self.alive[seat], self.gone[seat] = False, True

    def _arrive(self, seat: int, obs: Any, infos: Any) -> None:
        """Write the first row of a player that entered the match. Raises SpaceViolation if the player's observation is
        missing or invalid.
        """
        agent = self.agents[seat]
        if not isinstance(obs, Mapping) or agent not in obs:
            raise SpaceViolation(f"{agent} is in agents, but was given no observation", "players")
        self._show(seat, obs[agent], _of(infos, agent), 0.0, False, False, True, False)
        if near := check_contains(self.seen[seat], obs[agent]):
            self.say("bounds", near, f", {agent}")

    def _absent(self, lane: int) -> None:
        """Write a row with `first` set for a lane whose player is absent. The row keeps the last observation."""
        if "mask" in self.board.rows:
            tree.map(lambda mask: mask[lane].fill(True), self.board.rows["mask"])
        tree.write(self.board.rows, lane, first_row(self.board.rows))

    def _show(
        self,
        seat: int,
        obs: object,
        info: Mapping[str, Any],
        reward: float,
        dead: bool,
        late: bool,
        first: bool,
        over: bool,
    ) -> None:
        """Write a player's row. Raises SpaceViolation if the observation, mask, events or team reward are invalid."""
        rows, lane, spec = self.board.rows, self.lanes[seat], self.job.spec
        if (seat, lane) not in self._writers:
            self._writers[seat, lane] = self.writer(self.seen[seat], lane)
        try:
            self._writers[seat, lane](obs, info, reward, dead, late, first, over)
        except SpaceViolation as e:
            raise SpaceViolation(f"{self.agents[seat]}: {e}", e.rule) from None
        counted = NO_INFO if first else info
        if spec.events:
            rows["events"][lane] = pettingzoo.read_events(counted, len(spec.events))
        if spec.team_reward:
            rows["team_reward"][lane] = read_reward(counted.get(pettingzoo.TEAM_REWARD, 0.0))

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
    """Return an agent's info, or an empty dict if there is none."""
    info = infos.get(agent) if isinstance(infos, Mapping) else None
    return info if isinstance(info, Mapping) else NO_INFO


# Conversions in each step: action arrays become elements of the action space, and the checked results of step() and
# reset() become rows.


Casting = Literal["safe", "same_kind"]
Writer = Callable[[object], None]  # writes an environment's observations, see observation_writer


def read_step(result: object) -> tuple[object, float, bool, bool, object]:
    """Check the result of step(), except the observation, and return its five parts. Raises SpaceViolation."""
    obs, reward, terminated, truncated, info = (
        result if type(result) is tuple and len(result) == 5 else step_parts(result)
    )
    reward = read_reward(reward)
    if type(terminated) is bool and type(truncated) is bool:
        return obs, reward, terminated, truncated, info
    return obs, reward, read_flag("terminated", terminated), read_flag("truncated", truncated), info


def step_parts(result: object) -> Sequence[Any]:
    """Return the five parts of the result of step(). Raises SpaceViolation if there are not five."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        wanted = "(observation, reward, terminated, truncated, info)"
        old = ", as gym's before 0.26 did" if isinstance(result, tuple) and len(result) == 4 else ""
        raise SpaceViolation(f"step() must return {wanted}, given {rules.describe_value(result)}{old}", "step")
    return result


def read_reward(reward: object) -> float:
    """Convert a reward to float. Raises SpaceViolation if the reward is not one finite number of float32."""
    value = float(reward) if isinstance(reward, FLOATS) else _scalar(reward)
    if not -MOST <= value <= MOST:  # NaN fails this test too
        raise SpaceViolation(f"reward must be one finite number of float32, given {value}", "reward")
    return value


def _scalar(reward: Any) -> float:
    """Convert a scalar of NumPy or another library to float. Raises SpaceViolation if it is not a real number."""
    number = isinstance(reward, Real | np.bool_) or getattr(reward, "shape", None) == ()
    try:
        if number and not np.iscomplexobj(reward):
            return float(reward)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpaceViolation(f"reward must be one finite number, given {rules.describe_value(reward)}", "reward")


def read_flag(name: str, value: object) -> bool:
    """Convert the flag terminated or truncated to bool. Raises SpaceViolation if it is neither a boolean nor 0 or 1."""
    if type(value) is bool:
        return value
    if getattr(value, "shape", ()) != () or value not in (0, 1):
        raise SpaceViolation(f"{name} must be a boolean, given {rules.describe_value(value)}", "flags")
    return bool(value)


def final_observation_flaw(violation: SpaceViolation, terminated: bool) -> SpaceViolation:
    """Convert a rule violation in the last observation of an episode. If keys, shape or dtype are wrong, return a
    violation of the rule final-observation. Otherwise, return the given violation.
    """
    if violation.rule not in SHOWN:
        return violation
    how = "terminated" if terminated else "truncated"
    text = f"the step that {how} the episode has no real last observation: {violation}"
    return SpaceViolation(text, "final-observation")


def check_contains(space: gym.Space, obs: Any, path: str = "") -> str:
    """Check that `space` contains `obs`, whose shape and dtype are right. Return a warning if a number is out of bounds
    only by a rounding error, else "". Raises SpaceViolation if keys are wrong or a number is out of bounds.
    """
    try:
        if space.contains(obs):
            return ""
    except Exception as e:  # in a user's subclass of a space
        why = f"{type(space).__name__}.contains() raised {type(e).__name__}: {' '.join(str(e).split())}"
        raise SpaceViolation(f"{place_of(path)}{why}", "spaces") from None
    if isinstance(space, gym.Box):
        return near_bounds(space, np.asarray(obs), path)
    if isinstance(space, gym.Dict) and obs.keys() != space.spaces.keys():
        raise SpaceViolation(f"{place_of(path)}declared keys {list(space.spaces)}, given keys {list(obs)}", "keys")
    inner = subspaces(space)
    if inner is None:
        raise SpaceViolation(f"{place_of(path)}given a value outside {space}", "bounds")
    at = ((key, obs[key if isinstance(space, gym.Dict) else int(key)]) for key in inner)
    near = [check_contains(inner[key], part, inner_path(path, key)) for key, part in at]
    return next(filter(None, near), "")


def near_bounds(space: gym.Box, obs: np.ndarray, path: str) -> str:
    """Check the bounds of a Box, like check_contains. Floats may be out of bounds by a rounding error."""
    over = np.maximum(np.subtract(space.low, obs, dtype=float), np.subtract(obs, space.high, dtype=float))
    if not (over > 0).any():
        return ""  # the bounds hold: only the dtype differs, which the writer checks
    where = tuple(int(i) for i in np.unravel_index(np.argmax(over), over.shape))
    low, high = space.low[where], space.high[where]
    what = f"{place_of(path)}{in_full(obs[where])} at {list(where)} is not in [{in_full(low)}, {in_full(high)}]"
    floats = [np.finfo(x.dtype).eps for x in (space, obs) if np.issubdtype(x.dtype, np.floating)]
    size = max(abs(float(x)) if np.isfinite(x) else 1.0 for x in (low, high))
    if over[where] > ROUNDING * max(floats, default=0.0) * size:
        raise SpaceViolation(what, "bounds")
    return f"a reset observation lies beyond its bounds, {what}, but only by rounding: accepted unchanged"


def in_full(number: Any) -> str:
    """Format a number with all its digits."""
    short = f"{number:g}"
    return short if float(short) == float(number) else str(number)


def action_reader(space: gym.Space) -> Callable[[Tree], Any]:
    """Return a function that converts the action arrays of one lane to an element of the environment's action space."""
    inner = {k: action_reader(s) for k, s in (subspaces(space) or {}).items()}
    if isinstance(space, gym.Tuple):
        return lambda a: tuple(act(a[k]) for k, act in inner.items())
    if isinstance(space, gym.Dict):
        return lambda a: {k: act(a[k]) for k, act in inner.items()}
    if isinstance(space, gym.Discrete):
        kind, least = np.dtype(space.dtype).type, int(space.start)
        if kind is np.int64 and not least:
            return itemgetter(())  # makes a NumPy scalar
        return lambda a: kind(int(a) + least)
    dtype = space.dtype
    if isinstance(space, gym.Box):
        low, high = space.low, space.high
        return lambda a: np.asarray(np.minimum(np.maximum(a, low), high), dtype)  # np.clip is half as fast
    start = _start(space)
    return lambda a: np.asarray(a + start).astype(dtype)


def _start(space: gym.Space) -> np.ndarray:
    return np.asarray(getattr(space, "start", 0), np.int64)


def observation_writer(
    space: gym.Space, into: Tree, lane: int | slice, path: str = "", casting: Casting = "safe"
) -> Writer:
    """Return a function that checks an observation against `space` and writes it into `into[lane]`.

    `lane`: number of the lane, or a slice for a batch of observations.
    `casting`: which conversions of dtype a Box allows, as in np.can_cast; "same_kind" includes float64 to float32.
    The function raises SpaceViolation if keys, shape, dtype or a value do not fit `space`.
    """
    parts = subspaces(space)
    if parts is not None:
        inner = {k: observation_writer(s, into[k], lane, inner_path(path, k), casting) for k, s in parts.items()}
        return lambda obs: _write_parts(space, inner, obs, path)
    row = into[lane, ...]
    if isinstance(space, gym.Box):
        return _box_writer(space, row, path, casting)
    start, leaf = _start(space), leaf_of(space)
    assert isinstance(leaf, Whole)
    return lambda obs: _write_whole(space, leaf, start, row, obs, path)


def _write_parts(space: gym.Space, inner: dict[str, Writer], obs: object, path: str) -> None:
    if isinstance(space, gym.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(inner):
            given = f"{type(obs).__name__} of {len(obs)}" if isinstance(obs, tuple | list) else type(obs).__name__
            raise other(path, f"a tuple of {len(inner)}", given, "keys")
        parts = list(obs)
    else:
        if not isinstance(obs, Mapping) or not inner.keys() <= obs.keys():
            given = f"keys {list(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
            raise other(path, f"keys {list(inner)}", given, "keys")
        parts = [obs[key] for key in inner]
    for write, part in zip(inner.values(), parts, strict=True):
        write(part)


def _write_whole(space: gym.Space, leaf: Whole, start: np.ndarray, row: np.ndarray, obs: object, path: str) -> None:
    array = as_array(obs, None, space, path)
    if array.shape != row.shape or array.dtype.kind not in leaf.kinds:
        raise other(path, space, array, "shape" if array.shape != row.shape else "dtype")
    values = array.astype(np.int64) - start
    if (values.view(np.uint64) >= leaf.most).any():  # negative numbers are huge as uint64
        raise other(path, space, " ".join(str(array).split()), "bounds")
    row[...] = values


def _box_writer(space: gym.Box, row: np.ndarray, path: str, casting: Casting) -> Writer:
    dtype, floating, layout = space.dtype, np.issubdtype(space.dtype, np.floating), image_layout(space)
    shape = (*row.shape[: row.ndim - len(space.shape if layout is None else layout.shape)], *space.shape)
    finite = np.empty(shape if floating else 0, bool)
    put = layout.writer(row) if layout is not None and layout.moves else None

    def write(given: object) -> None:
        obs = given if type(given) is np.ndarray else as_array(given, dtype, dtype, path)
        if obs.shape != shape or (obs.dtype != dtype and not np.can_cast(obs.dtype, dtype, casting)):
            raise other(path, f"{dtype} {list(shape)}", obs, "shape" if obs.shape != shape else "dtype")
        if floating and b"\0" in np.isfinite(obs, finite).tobytes():  # .all() is slower for a few numbers
            bad = np.argwhere(~np.isfinite(obs))
            first = f"{obs[tuple(bad[0])]} at {bad[0].tolist()} of an observation"
            raise SpaceViolation(f"{place_of(path)}{first}, {len(bad)} of {obs.size} values not finite", "finite")
        if put is None:
            row[...] = obs
        else:
            put(obs)

    return write


def other(path: str, declared: object, given: object, rule: str) -> SpaceViolation:
    """Return the SpaceViolation for a part of an observation that is not as declared."""
    given = f"{given.dtype} {list(given.shape)}" if isinstance(given, np.ndarray) else given
    return SpaceViolation(f"{place_of(path)}declared {declared}, given {given}", rule)


def as_array(obs: object, dtype: np.dtype | None, declared: object, path: str) -> np.ndarray:
    """Convert an observation to an array. Lists and Python numbers are converted to `dtype`. Raises SpaceViolation if
    `dtype` cannot hold the values, or if `obs` is not an array.
    """
    own = isinstance(obs, list | tuple | bool | int | float)
    try:
        array = np.asarray(obs, dtype if own else None)
        if not own or dtype is None or dtype.kind not in "biu" or np.array_equal(array, np.asarray(obs)):
            return array
        raise OverflowError
    except OverflowError:
        rule, given = "dtype", f"{' '.join(str(obs).split())[:80]}, which it can't hold"
    except (TypeError, ValueError):
        rule, given = "shape", f"{type(obs).__name__} that is not an array"
    raise other(path, declared, given, rule)
