"""Every Atari game through ale-py's own vector environment: its threads step, its arrays are not copied.

Why some things here are done in a roundabout way: ale-py's behaviour (0.12, src/ale/vector; pinned by tests):

- its reward clipping loses the score and its `episodic_life` resets the whole game: both stay off;
- with life_loss_info its `terminated` mixes lost lives with the end of the game: that stays off, and we compare the
  `lives` count ourselves, so that `over` is exact;
- its stack is padded with zeros after a reset: `stack_reset="repeat"` fills them;
- where it truncates, the last frame was never drawn (its loop ends before the screen is read): we count
  steps, end the game one step before ale-py would, and reset that lane ourselves, so that the last
  observation is the real one;
- `send` takes no lanes: it answers the last `recv`, and an action out of range would make the next `recv`
  hang.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from polyplay.common.errors import UserError
from polyplay.common.tree import Batch, Field, Tree
from polyplay.envs.atari.presets import Atari
from polyplay.envs.pool import Envs, EnvSpec, Lanes, closest_names, lane_seeds, options
from polyplay.envs.pools.base import BasePool
from polyplay.envs.pools.batching import TAKEN
from polyplay.envs.spaces import Discrete, describe_fields

STACKS = {"zero": "zeros", "repeat": "first frame repeated", "play": "filled by steps of NOOP"}
NO_SINGLE_PLAYER = {"combat", "joust", "mazecraze", "maze_craze", "warlords"}


def games() -> dict[str, str]:
    """ROM name by the name in its id: {"MsPacman": "ms_pacman", …}. Raises UserError where ale-py is
    missing.
    """
    try:
        from ale_py import roms
    except ImportError as e:
        raise UserError(f"ALE games need ale-py ({e}): pip install polyplay[atari]") from None
    return {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids() if rom not in NO_SINGLE_PLAYER}


def rom(name: str) -> str:
    """'ALE/MsPacman-v5' → 'ms_pacman'. The id names only the game. Raises UserError: no such game."""
    known = games()
    game = name.removeprefix("ALE/")
    head, dash, version = game.rpartition("-v")
    game = head if dash and version.isdigit() else game
    for title, found in known.items():
        if game.lower() in (title.lower(), found):
            return found
    if game.lower() in NO_SINGLE_PLAYER:
        raise UserError(f"{name}: this game has no single-player mode")
    hint = closest_names(f"ALE/{game}-v5", [f"ALE/{title}-v5" for title in known])
    raise UserError(f"--env: unknown Atari game {name!r}{hint} (one of {len(known)})")


@lru_cache(maxsize=64)
def actions_of(game: str, full: bool) -> tuple[str, ...]:
    """Names of the actions of a game, in their order; `full`: all 18."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(str(ale_py.roms.get_rom_path(game)))
    return tuple(a.name for a in (ale.getLegalActionSet() if full else ale.getMinimalActionSet()))


def describe(envs: Envs) -> EnvSpec:
    """The spec of an ALE game. Raises UserError: unknown game or option, ale-py missing."""
    game, o = rom(envs.title), options(Atari, envs.options, envs.title)
    actions = actions_of(game, o.full_actions)
    obs = Field(o.shape, "uint8")
    lives = "ignored" if o.life_loss == "ignore" else "terminates for the learner, the game goes on"
    lives += f" with {o.life_start} and a new stack" if o.life_loss == "terminate" and o.life_start else ""
    text = {
        "game": game,
        "frameskip": f"{o.frameskip}{', maximum of the last two frames' if o.maxpool else ''}",
        "sticky": f"{o.sticky:g}",
        "actions": f"{len(actions)} ({'all' if o.full_actions else 'minimal'}): {' '.join(actions)}",
        "stack": f"{o.stack}, {STACKS[o.stack_reset]} after a reset",
        "no-ops": _start(o, actions),
        "life loss": lives,
        "observation": f"{describe_fields(obs)} gray{_picture(o)}",
        "max frames": str(o.max_frames),
        "pipeline": "ale-py's vector environment" if o.native else "ale-py's plain emulator",
    }
    return EnvSpec(obs, Discrete(len(actions)), frames_per_step=o.frameskip, describe=text)


def _start(o: Atari, actions: tuple[str, ...]) -> str:
    if o.starts:
        return f"none; start states of {o.starts}"
    fire = " with FIRE first" if o.fire_reset and "FIRE" in actions else ""
    text = f"{o.noop_min}–{max(o.noop_max - 1, 0)} frames{fire}"
    return text if o.start == "noops" else f"{text}, in {o.start!r}" if "noops" in o.start else o.start or "none"


def _picture(o: Atari) -> str:
    """What of a picture is not ale-py's own way."""
    parts = (o.gray != "ale" and o.gray, o.crop and f"without the last {o.crop} rows", o.resize != "area" and o.resize)
    return "".join(f", {part}" for part in parts if part)


class NativePool(BasePool):
    """A Pool of one ALE game, for one thread. A group is an AtariVectorEnv of its own.

    Greedy(n) uses ale-py's asynchronous mode: recv gives n lanes (fewer in the rare turn that ends a truncated game),
    and all of them must be answered before the next recv, so lanes cannot be parked there.
    """

    unsaved = "ale-py's vector environment cannot save a game"

    def __init__(self, envs: Envs, seed: int, lane: int):
        super().__init__(envs, rows={})  # ale-py's own arrays
        self.options = options(Atari, envs.options, envs.title)
        self._width, self._asynchronous = self._turns.width, not envs.fixed
        self._batch = self._turns.most if not envs.fixed else self._width
        self._steps = -(-self.options.max_frames // self.options.frameskip)  # of one game
        game = rom(envs.title)
        self._vectors: list[Any] = [self._vector(game, envs.workers) for _ in range(envs.groups)]
        actions = actions_of(game, self.options.full_actions)
        self._noop = actions.index("NOOP") if "NOOP" in actions else 0  # two board games have none
        self._seeds = lane_seeds(seed, lane, envs.lanes).astype(np.int32)
        self._began = [False] * envs.groups
        n = envs.lanes  # per lane, of its last row:
        self._age = np.zeros(n, np.int64)  # steps since its game began
        self._lives = np.zeros(n, np.int32)
        self._over = np.ones(n, bool)  # the next row begins a game
        self._cut = np.zeros(n, bool)  # a life was lost: the next row is a first one
        self._late = np.zeros(n, bool)  # we ended its game, ale-py has not yet
        self._order: np.ndarray = np.zeros(0, np.int64)  # asynchronous: lanes in ale-py's order
        if self.fixed:
            self._turns.back(range(n))  # recv() waits for them

    def _vector(self, game: str, threads: int) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        o, (planes, height, width) = self.options, self.options.shape
        return AtariVectorEnv(
            game,
            self._width,
            batch_size=0 if self.fixed else self._batch,
            num_threads=threads,
            max_num_frames_per_episode=self._steps * o.frameskip + 1,  # one step after we ended the game
            repeat_action_probability=o.sticky,
            full_action_space=o.full_actions,
            img_height=height,
            img_width=width,
            stack_num=planes,
            frameskip=o.frameskip,
            maxpool=o.maxpool,
            noop_max=o.noop_max,
            use_fire_reset=o.fire_reset,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
        )

    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """See Pool. Always waits: an emulator's step ends. Raises RuntimeError: nothing was sent."""
        self._check_open()
        if self.fixed:
            return super().recv()
        if (self._turns.where == TAKEN).any():
            raise RuntimeError("recv() before the rows that recv() gave were answered with send()")
        lanes, rows = self._receive_ready()
        self._turns.back(lanes.tolist())
        self._turns.take()  # just these
        return lanes, rows

    def _raw(self, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """obs, reward, game over, info as ale-py gives them; its first are its reset's."""
        vector = self._vectors[group]
        if self._began[group]:
            obs, reward, dead, _, info = vector.recv()
            return obs, reward, dead, info
        self._began[group] = True
        obs, info = vector.reset(seed=self._seeds[group * self._width :][: self._width])
        return obs, np.zeros(len(obs), np.int32), np.zeros(len(obs), bool), info

    def _rows_of(self, lanes: Lanes) -> Batch:
        assert isinstance(lanes, slice)
        group = lanes.start // self._width
        obs, reward, dead, info = self._raw(group)
        late = self._late[lanes]
        if late.any():  # ale-py played on for one frame: reset these lanes now, the others stay as they are
            reward[late], dead[late] = 0, False
            obs, info = self._vectors[group].reset(options={"reset_mask": late.copy()})
        return self._finish(lanes, obs, reward, dead, info["lives"])

    def _receive_ready(self) -> tuple[np.ndarray, Batch]:
        while True:
            obs, reward, dead, info = self._raw(0)
            lanes = self._order = info["env_id"].astype(np.int64)
            shown = ~self._late[lanes]
            self._late[lanes] = False  # ale-py's own end of a game that we ended: its next row is the reset
            if shown.any():
                break
            self._vectors[0].send(np.zeros(self._batch, np.int64))
        rows = (lanes, obs, reward, dead, info["lives"])
        rows = rows if shown.all() else tuple(x[shown] for x in rows)
        return rows[0], self._finish(*rows)

    def _finish(self, at: Lanes, obs: np.ndarray, reward: np.ndarray, dead: np.ndarray, lives: np.ndarray) -> Batch:
        """Our flags of these rows, from what the lanes' last rows were."""
        begins = self._over[at].copy()
        age = np.where(begins, 0, self._age[at] + 1)
        late = (age >= self._steps) & ~dead
        over = dead | late
        first, terminated = begins, dead
        if self.options.life_loss == "terminate":
            first = begins | self._cut[at]
            cut = (lives < self._lives[at]) & (lives > 0) & ~begins & ~dead
            self._cut[at] = cut & ~late
            terminated = dead | cut
        self._age[at], self._lives[at], self._over[at], self._late[at] = age, lives, over, late
        if self.options.stack_reset == "repeat":
            _repeat(obs, age)
        return {
            "obs": obs,
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": late,
            "first": first,
            "over": over,
        }

    def send(self, lanes: Lanes, action: Tree) -> None:
        """See Pool: in ale-py's asynchronous mode `lanes` must be exactly those of the last recv."""
        self._check_open()
        taken = int((self._turns.where == TAKEN).sum())
        if not self.fixed and self._turns.count(lanes) != taken:
            raise ValueError(f"send() answers exactly the lanes of the last recv(), {taken} of them, got {lanes}")
        super().send(lanes, action)

    def _step(self, numbers: np.ndarray, action: np.ndarray) -> None:
        if not self.fixed:
            all_actions = np.zeros(self.lanes, np.int64)
            all_actions[numbers] = action
            action, numbers = all_actions[self._order], self._order
        ignored = self._cut[numbers] | self._late[numbers]
        if ignored.any():
            action = np.where(ignored, self._noop, action)
        self._vectors[int(numbers[0]) // self._width].send(action)

    def close(self) -> None:
        super().close()
        self._vectors.clear()


def _repeat(obs: np.ndarray, age: np.ndarray) -> None:
    """Fill the empty planes of young games with their first frame, in place."""
    newest = obs.shape[1] - 1
    for i in np.flatnonzero(age < newest):
        empty = newest - int(age[i])
        obs[i, :empty] = obs[i, empty]
