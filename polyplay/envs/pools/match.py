"""One environment of several players, and the rows of its lanes on a pool's board.

A player that acted has a row. One that has died, or is not there yet, has a `first` row: no transition. The match is
over when nobody is left; its next turn resets it, or lets it rest while the pool holds its matches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Tree
from polyplay.envs import masks, pettingzoo, rules, spaces
from polyplay.envs.pool import Factory
from polyplay.envs.pools import copies, saved_state
from polyplay.envs.pools.board import SharedRows
from polyplay.envs.pools.build import build_env, inspect
from polyplay.envs.pools.turn import START, LaneJob, Unbuilt, check_generator, unit_seed
from polyplay.envs.spaces import SpaceViolation

NO_INFO: Mapping[str, Any] = {}


class Match:
    """The players of one environment. Orders and notes call it by its first lane's number."""

    def __init__(self, job: LaneJob, make: Factory, board: SharedRows, lane: int, allow: Callable[[float], None]):
        assert board.seating is not None
        self.job, self.make, self.board, self.lane, self.allow = job, make, board, lane, allow
        self.seating, self.match = board.seating, int(board.seating.match[lane])
        numbers = [job.lane + int(i) for i in self.seating.own[self.match]]
        self.who = f"{job.title}, lane{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        self.env: Any = None
        self.agents: list[pettingzoo.Agent] = []  # of the seats
        self.over, self.seeded = True, False
        self.alive: list[bool] = []  # of each seat: its player can act
        self.gone: list[bool] = []  # its player's part has ended
        self.lanes: list[int] = []  # of the seats, in this match
        self.last: Tree = None
        self.stage, self.remark, self.remarked = "build", "", False
        self._writers: dict[tuple[int, int], tuple[spaces.Writer, masks.MaskWriter]] = {}  # by seat and lane

    def advance(self) -> None:
        """Make the next row of every lane. Raises Unbuilt, SpaceViolation, and what the environment raises."""
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

    def prepare(self) -> None:
        """Build the environment. Raises UserError, Unbuilt, SpaceViolation."""
        self.stage = "build"
        self.allow(max(START, self.job.step_timeout))
        want = self.job.spec
        try:
            env = self.env = build_env(self.make, self.job.title)
            copies.take(env, self, self.job.title)
            spec = inspect(env, self.job.title)
        except UserError as e:
            if self.board.faults[self.lane] == 0:
                raise Unbuilt(str(e)) from e
            raise
        if (spec.obs, spec.action, spec.seats) != (want.obs, want.action, want.seats):
            first, this = (f"{s.describe['observation']} / {s.describe['actions']}" for s in (want, spec))
            text = f"declared {first} in {want.seats} seats by the first environment, given {this} in {spec.seats}"
            raise SpaceViolation(f"{text} by this one")
        self.agents = list(env.possible_agents)
        self.seen = [env.observation_space(agent) for agent in self.agents]
        self.acted = [env.action_space(agent) for agent in self.agents]
        self._act = [spaces.action_reader(space) for space in self.acted]
        self._writers = {}

    def _begin(self) -> None:
        if self.env is None:
            self.prepare()
        self.allow(self.job.step_timeout)
        self.stage = "reset"
        seed = None if self.seeded else unit_seed(self)
        obs, infos = rules.read_reset(self.env.reset(seed=seed))
        if seed is not None:
            check_generator(self, self.env, seed)
        self.seeded = True
        self.seating.draw(np.array([self.match]))
        self.lanes = self.seating.lanes[self.match].tolist()
        self._check_spaces()
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

    def _check_spaces(self) -> None:
        """Raises SpaceViolation: an agent's spaces are not what they were."""
        for seat, agent in enumerate(self.agents):
            now = self.env.observation_space(agent), self.env.action_space(agent)
            for kind, was, found in zip(
                ("observation", "action"), (self.seen[seat], self.acted[seat]), now, strict=True
            ):
                if found is not was and found != was:
                    raise SpaceViolation(f"{kind} space of {agent} was {was} and is now {found}")

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
        if odd := getattr(self.env, "remark", ""):  # of a turn-based one
            self.remark, self.remarked, self.env.remark = f"{self.job.title}: {odd}", False, ""

    # ----------------------------------------------------------------------------------------- its rows

    def _played(self, seat: int, results: Any, here: bool) -> None:
        """The row of a player that acted; here: it is among the agents still. Raises SpaceViolation."""
        agent, (obs, rewards, terminations, truncations, infos) = self.agents[seat], results
        try:
            seen, reward = obs[agent], rules.read_reward(rewards[agent])
            terminated, truncated = terminations[agent], truncations[agent]
        except (KeyError, TypeError):
            raise SpaceViolation(
                f"step() gave no observation, reward or flag of {agent}, which acted", "players"
            ) from None
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated = rules.read_flag("terminated", terminated)
            truncated = rules.read_flag("truncated", truncated)
        over = terminated or truncated
        if not over and not here:
            raise SpaceViolation(f"{agent} left agents, but was neither terminated nor truncated", "agents")
        info = _of(infos, agent)
        try:
            self._show(seat, seen, info, over)
        except SpaceViolation as e:
            raise rules.final_observation_flaw(e, terminated) if over else e from None
        if over:
            self.alive[seat], self.gone[seat] = False, True
        self._write(self.lanes[seat], reward, terminated, truncated, False, over, info)

    def _arrive(self, seat: int, obs: Any, infos: Any) -> None:
        """The first row of a player. Raises SpaceViolation."""
        agent = self.agents[seat]
        if not isinstance(obs, Mapping) or agent not in obs:
            raise SpaceViolation(f"{agent} is in agents, but was given no observation", "players")
        info = _of(infos, agent)
        self._show(seat, obs[agent], info, False)
        near = rules.check_contains(self.seen[seat], obs[agent])
        self.remark = near and f"{self.job.title}, {agent}: {near}"
        self._write(self.lanes[seat], 0.0, False, False, True, False, NO_INFO)

    def _absent(self, lane: int) -> None:
        """The row of a seat without a player. Its observation stays."""
        if "mask" in self.board.rows:
            tree.map(lambda mask: mask[lane].fill(True), self.board.rows["mask"])
        self._write(lane, 0.0, False, False, True, False, NO_INFO)

    def _show(self, seat: int, obs: object, info: Mapping[str, Any], last: bool) -> None:
        """Write an observation, and its mask. Raises SpaceViolation."""
        write, allowed = self._writers.get((seat, self.lanes[seat])) or self._writer(seat)
        try:
            write(obs)
            allowed(obs, info, last)
        except SpaceViolation as e:
            raise SpaceViolation(f"{self.agents[seat]}: {e}", e.rule) from None

    def _writer(self, seat: int) -> tuple[spaces.Writer, masks.MaskWriter]:
        space, lane, rows = self.seen[seat], self.lanes[seat], self.board.rows
        shown = masks.without_mask(space)
        write = spaces.observation_writer(shown, rows["obs"], lane)
        allowed = masks.mask_writer(self.job.spec.action, rows.get("mask"), lane, shown is not space)
        return self._writers.setdefault((seat, lane), (write, allowed))

    def _write(
        self, lane: int, reward: float, dead: bool, late: bool, first: bool, over: bool, info: Mapping[str, Any]
    ) -> None:
        rows, spec = self.board.rows, self.job.spec
        rows["reward"][lane] = reward
        rows["terminated"][lane], rows["truncated"][lane] = dead, late
        rows["first"][lane], rows["over"][lane] = first, over
        if spec.events:
            rows["events"][lane] = pettingzoo.read_events(info, len(spec.events))
        if spec.team_reward:
            rows["team_reward"][lane] = rules.read_reward(info.get(pettingzoo.TEAM_REWARD, 0.0))

    # -------------------------------------------------------------------------------------- its whole life

    def save(self) -> Batch:
        """What decides this match's future, without its rows. Raises Unsaveable, and what the environment raises."""
        self.allow(self.job.step_timeout)
        env = {} if self.env is None else {"env": saved_state.save_env(self.env)}
        return {"over": np.array(self.over), "alive": np.array(self.alive), "gone": np.array(self.gone), **env}

    def load(self, saved: Batch) -> None:
        """Go on from there, who sits where included; it was reset before. Raises the same."""
        self.allow(self.job.step_timeout)
        if self.env is None or "env" not in saved:
            self.close()
            return
        saved_state.load_env(self.env, saved["env"])
        self.over, self.alive, self.gone = bool(saved["over"]), saved["alive"].tolist(), saved["gone"].tolist()
        self.lanes = self.seating.lanes[self.match].tolist()

    def close(self) -> None:
        """Close the environment, whatever it raises."""
        env, self.env = self.env, None
        copies.give_back(self)
        self.over, self.seeded, self.last = True, False, None
        if env is not None:
            with contextlib.suppress(BaseException):
                env.close()


def _of(infos: Any, agent: pettingzoo.Agent) -> Mapping[str, Any]:
    """An agent's info; nothing where there is none."""
    info = infos.get(agent) if isinstance(infos, Mapping) else None
    return info if isinstance(info, Mapping) else NO_INFO
