"""Describe environments (`Envs`, `EnvSpec`), and define the base class of pools, which step environments (`Pool`).

A pool steps lanes (parallel environments). Each step of a lane gives a row: an observation, a reward and flags. A row
with `terminated` or `truncated` has the last observation of its episode. The lane's next step ignores the action and
resets the environment. It gives a row with `first` set, which begins the next episode.
"""

from __future__ import annotations

import difflib
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gymnasium import spaces as gym

from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.tree import Batch, Field, Spec, Tree
from polyplay.envs import masks, rules, spaces
from polyplay.envs.images import IMAGES, ImageOptions, image_layout, image_leaves
from polyplay.envs.spaces import ActionSpec, Conditional, conditional_actions, subspaces

if TYPE_CHECKING:
    from polyplay.envs.lane import Seats
    from polyplay.envs.shared_rows import Seating

WRAPPERS = "wrappers"  # key of Envs.options for Gymnasium environments, see Envs.wrappers
RESET = "reset options"  # key of Envs.options for Gymnasium environments, see Envs.reset_options
APART = {WRAPPERS: "--wrapper", RESET: "--env-options"}  # flags of these options
EPISODE_CUT = "polyplay.cut"  # key in a step's info: the learner's episode ends here, the game continues
Factory = Callable[..., Any]  # makes a gymnasium.Env, or a VectorEnv
Lanes = slice | np.ndarray  # a slice: a fixed group, whose rows are views; int64 numbers: ready lanes


def need(good: bool, text: str) -> None:
    """Raise UserError(text) if `good` is false."""
    if not good:
        raise UserError(text)


# ------------------------------------------------------------------------------------------- pool


@dataclass(frozen=True)
class EnvSpec:
    """Description of the observations and actions of one lane (parallel environment).

    describe: facts about the environment, to print.
    classes: {path: number of values} of Discrete observations, and {path: `nvec`} of MultiDiscrete ones.
    mask: fields (shape and dtype) of the masks of legal actions, see the module `masks`; None: no masks.
    vector: whether the factory makes vector environments.
    width: number of lanes that a vector environment has; 0: any number.
    spaces: the environment's spaces as JSON.
    images: paths of the images that the user named; None: images are found by their spaces.
    view: how images are converted, see `image_view`.

    For environments with several players (each player is a lane):
    seats: number of players of a match.
    teams, kinds: team and kind of each seat (place of a player). Seats of one kind have equal spaces.
    events: names of the events that rows count.
    team_reward: whether rows have a `team_reward`.
    bots: scripted players, {name: "module:callable"}, see lane.load_bot.

    For several environments (tasks) in one run:
    tasks: names of the tasks.
    order: task numbers; lane i always plays task `order[i % len(order)]`.
    parts: description of each task.
    task_input: how networks get the task, see `Envs`. If not "none", observations are dicts with "seen" and "task".
    """

    obs: Spec
    action: ActionSpec
    frames_per_step: int = 1
    describe: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    mask: Spec | None = None
    vector: bool = False
    width: int = 0
    spaces: Mapping[str, Any] | None = field(default=None, compare=False)
    seats: int = 1
    teams: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()
    events: tuple[str, ...] = ()
    team_reward: bool = False
    bots: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] | None = None
    view: Mapping[str, Any] | None = field(default=None, compare=False)
    tasks: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    task_input: str = "none"
    parts: tuple[EnvSpec, ...] = field(default=(), compare=False)
    step_time: float = field(default=0.0, compare=False)  # seconds per step of Gymnasium's own environments; 0: unknown

    @property
    def image_leaves(self) -> list[str]:
        """Paths of the images in observations."""
        return image_leaves(self.obs) if self.images is None else list(self.images)

    @property
    def sides(self) -> tuple[int, ...]:
        """Number of each seat's team, from 0. Without declared teams, each seat is a separate team."""
        teams = self.teams or range(self.seats)
        numbers = {team: i for i, team in enumerate(sorted(set(teams)))}
        return tuple(numbers[team] for team in teams)

    @property
    def own_fields(self) -> Spec:
        """Fields that rows have only if the environment has several players or several tasks."""
        events = {"events": Field((len(self.events),), "float32")} if self.events else {}
        task = {"task": Field((), "int64")} if self.tasks else {}
        return {**events, **task, **({"team_reward": Field((), "float32")} if self.team_reward else {})}

    def task_of(self, lane: int) -> str | None:
        """Return the name of the task that a lane of the run plays, or None if the run has one environment."""
        return self.tasks[self.order[lane % len(self.order)]] if self.tasks else None


class Pool(ABC):
    """Base class of pools. A pool steps lanes (parallel environments) that have the same `spec`.

    Most pools need only the abstract methods. The other methods are for matches of several players, images for people,
    a varying number of lanes, and saved states.
    """

    spec: EnvSpec
    title: str  # the environment's name in errors
    lanes: int
    groups: int
    fixed: bool  # whether recv gives slices (fixed groups), not index arrays
    faults: list[str]  # faults, each with its traceback; the reader may remove them
    remarks: list[str]  # warnings that are not faults; the reader may remove them
    restarts: int = 0  # lanes restarted so far, after faults
    unsaved: str = ""  # why state() last returned None
    seating: Seating | None = None  # lanes of the seats, for several players; as of the rows that recv gave
    resting: bool = False  # whether every match is over and held, see pause_matches()
    threaded: bool = False  # whether threads may call recv and send at the same time; then recv waits for lanes

    @abstractmethod
    def recv(self, timeout: float | None = None) -> tuple[Lanes, Batch]:
        """Wait for lanes that have stepped. Return their numbers and their rows, in the same order. The arrays are
        valid until the next send() for these lanes. Each lane's first row holds the observation of a reset.

        timeout: seconds to wait; None: no limit. The pools of ale-py and EnvPool ignore it.
        Raises TimeoutError after `timeout`, EnvFailure if an environment failed, and Closed after close().
        """

    @abstractmethod
    def send(self, lanes: Lanes, action: Tree) -> None:
        """Send actions for lanes that recv gave, in the form of `spec.action`: an array [B, …], or a dict of arrays.
        Raises ValueError if the lanes or actions are wrong.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all environments and processes. Further calls have no effect."""

    def picture(self, lane: int) -> tuple[np.ndarray, float] | None:
        """Return an RGB image of a lane, uint8 [H, W, 3], and images per second, or None if nothing is rendered."""
        return None

    # ---------------------------------------------------------------------------------------- matches

    def pause_matches(self, on: bool) -> None:
        """Hold all matches if `on` is true, else release them. Held matches continue to their end, but do not restart.
        Their lanes then give only rows with `first` set, which are no transitions. A released match restarts in its
        next step. Raises ValueError if the pool has no matches.
        """
        raise ValueError(f"{self.title}: has no matches to hold")

    def seats_of(self, lanes: Lanes) -> Seats | None:
        """Return the states of all matches, and the match and seat (place of a player) of each of these lanes, or None
        if there are no such states. The arrays are valid until the next send() for these lanes.
        """
        return None

    # ------------------------------------------------------------------------ lanes that come and go

    @property
    def ready(self) -> int:
        """Number of lanes with a row that recv has not returned yet. With fixed groups, it is always 0."""
        return 0

    @property
    def wanted(self) -> int:
        """Number of lanes that should exist, from lane 0 on, as set by scale()."""
        return self.lanes

    @property
    def present(self) -> int:
        """Number of lanes that exist now."""
        return self.lanes

    def scale(self, n: int) -> None:  # noqa: B027 - lanes that stay need nothing
        """Keep only the first `n` lanes. recv returns each other lane once more, for part(). Fixed lanes stay."""

    def part(self, lanes: np.ndarray) -> None:
        """End these lanes, int64 [n], which scale() removed and recv has returned. The caller sends them no actions."""
        raise ValueError(f"{self.title}: its lanes are fixed")

    def waits(self) -> tuple[float, float] | None:
        """Return the seconds that environments waited for actions, and the number of waits, or None if not counted."""
        return None

    # ------------------------------------------------------------------------------------------ state

    def state(self) -> Batch | None:
        """Return the whole state of the pool as arrays, or None if this is impossible (`unsaved` says why)."""
        return None

    def load(self, state: Batch) -> None:
        """Restore exactly a state that state() returned. Raises ValueError if the pool cannot be saved."""
        raise ValueError(f"{self.title}: has no state to load: {self.unsaved}")


# ------------------------------------------------------------------------------------ description


@dataclass(frozen=True)
class Envs:
    """Description of a pool of environments. open() makes the pool. A description can be pickled, a callable `name` by
    cloudpickle.

    name: "ALE/Pong-v5" (any Atari game), a Gymnasium id, "toy:catch", "module:callable", "module:EnvId-v0",
    "envpool:Task-v1", or a callable that returns a gymnasium.Env or VectorEnv.
    options: values of an Atari preset, sizes of a toy, EnvPool's options, or keyword arguments of the factory.
    """

    name: str | Factory
    lanes: int
    groups: int = 1
    at_once: int = 0  # most lanes that recv gives (EnvPool: waits for this many); 0: fixed groups, in turn
    workers: int = 0  # processes (0: one per core, at most one per lane), or threads of ale-py's or EnvPool's pool
    step_timeout: float = 60.0  # seconds after which a process pool restarts a lane whose step has not ended
    max_restarts: int = 10  # recent faults (exceptions, hangs, lost processes) to repair, see base_pool.Faults
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    active: int = 0  # lanes at the start (0: all), in a process pool with a process per lane; see scale()
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)  # more options, from the command line
    wrappers: tuple[str, ...] = ()  # wrappers of a Gymnasium environment, each "module:callable", the innermost first
    reset_options: Any = field(default=None, hash=False)
    # options of every reset: a dict, or a callable (or "module:callable") that returns one for the run's progress
    progress: Any = None  # core.worker.Hyperparameters; `remaining`: fraction of the run left; None: the run is over
    images: ImageOptions | None = None  # which parts of observations are images, and their conversion
    inline: bool | None = None
    # True: single environments step in the caller's thread, as in serial runs; False: in processes; None: only
    # Gymnasium's own fast ones step in the thread, see make.split_steps
    helps: bool = False  # whether the caller is idle while lanes step, and so may step some of them
    alone: bool = False  # whether the caller's thread steps a single group of Atari games, without ale-py's threads
    agents: int = 1  # agents that share the seats of matches, each with a group of lanes, see shared_rows.Seating
    only: int = -1  # number of the one task that all lanes play; -1: all tasks
    task_input: str = "none"  # the task as a network input: onehot, embedding, or none

    def __post_init__(self) -> None:
        wrapper = "--wrapper module:callable"
        need(WRAPPERS not in self.kwargs, f"--env-kwargs: {WRAPPERS} given, which is not a keyword here: {wrapper}")
        apart = {WRAPPERS: self.wrappers, RESET: self.reset_options, IMAGES: self.images}
        more = {**self.kwargs, **{name: given for name, given in apart.items() if given}}
        object.__setattr__(self, "options", {**self.options, **more})
        parts = "--players" if self.agents > 1 else "--groups"
        whole = self.lanes > 0 and self.groups > 0 and self.lanes % self.groups == 0
        need(whole, f"--lanes {self.lanes} given; allowed: positive multiples of {parts} {self.groups}")
        alone = self.fixed or (self.groups == 1 and 1 <= self.at_once <= self.lanes)
        got = f"groups={self.groups}, lanes={self.lanes}"
        need(alone, f"at_once={self.at_once} needs groups=1 and 0 … lanes, got {got}")
        comes = 0 <= self.active <= self.lanes and not (self.active and self.fixed)
        need(comes, f"active={self.active} must be 0 … lanes={self.lanes}, and needs at_once")
        good = self.workers >= 0 and self.step_timeout > 0 and self.max_restarts >= 0
        least = f"workers={self.workers} and max_restarts={self.max_restarts} must be 0 or more"
        need(good, f"{least}, step_timeout={self.step_timeout} above 0")

    @property
    def fixed(self) -> bool:
        """Whether recv returns fixed groups of lanes in turn. Otherwise, it returns the lanes that are ready."""
        return not self.at_once

    @property
    def title(self) -> str:
        """The environment's name in error messages."""
        return title_of(self.name)

    @cached_property
    def spec(self) -> EnvSpec:
        """Description of a lane (parallel environment). The first access may build a Gymnasium environment, in a
        separate process unless `inline` is true. Raises UserError if the environment is unknown or not supported.
        """
        from polyplay.envs.make import describe

        return describe(self)

    def share(self, **changes: Any) -> Envs:
        """Return a copy with these changes. The copy keeps `spec`, which is not made again."""
        other = replace(self, **changes)
        if "spec" in self.__dict__:
            other.__dict__["spec"] = self.spec
        return other

    def open(self, seed: int, lane: int = 0) -> Pool:
        """Open the pool. `lane`: number of its first lane among all lanes of the run. Seeds depend on this number."""
        from polyplay.envs.make import connect

        return connect(self, seed, lane)

    def __getstate__(self) -> Batch:
        state = dict(self.__dict__)
        if not isinstance(self.name, str):
            import cloudpickle

            state["name"] = cloudpickle.dumps(self.name)
        return state

    def __setstate__(self, state: Batch) -> None:
        if isinstance(state["name"], bytes):
            state["name"] = pickle.loads(state["name"])
        self.__dict__.update(state)


# --------------------------------------------------------------------------------- shared helpers


ATARI57 = "@atari57"  # name of the list of the literature's 57 Atari games


def task_words(name: object) -> list[tuple[str, int]]:
    """Return the tasks that `name` lists as [(name, weight), …], or [] if `name` is one environment. A list is written
    as "ALE/Pong-v5,ALE/Breakout-v5:2" or @atari57. Raises UserError if a task is given twice, a list is unknown, or all
    weights are 0.
    """
    given = re.split(r",(?![^(]*\))", name) if isinstance(name, str) else []  # game:spiel:mnk(m=4,n=5) is one name
    if len(given) < 2 and not str(name).startswith("@"):
        return []
    found = list[tuple[str, int]]()
    for word in filter(None, map(str.strip, given)):
        title, colon, weight = word.rpartition(":")
        plain, times = (title, int(weight)) if colon and weight.isdecimal() else (word, 1)
        if plain == ATARI57:
            from polyplay.envs.atari import atari57

            found += [(game, times) for game in atari57()]
        else:
            found.append((plain, times))
    names = [title for title, _ in found]
    twice = next((title for title in names if names.count(title) > 1), "")
    need(not twice, f"--env: {twice} given twice; write {twice}:2 to play it in two lanes of the order")
    unknown = next((title for title in names if title.startswith("@")), "")
    need(not unknown, f"--env: {unknown} is not a list of tasks; allowed: @atari57, @FILE, @module:function")
    need(sum(times for _, times in found) > 0, f"--env: {name} given, whose weights are 0: give one task a weight")
    return [(title, times) for title, times in found if times]


def task_order(words: list[tuple[str, int]]) -> tuple[int, ...]:
    """Return the task number of each lane, in lane order. Each task occurs as often as its weight, spread evenly."""
    places = [((k + 0.5) / times, i) for i, (_, times) in enumerate(words) for k in range(times)]
    return tuple(i for _, i in sorted(places))


def title_of(name: str | Factory) -> str:
    """Return the name that error messages use for an environment or a factory."""
    return name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))


def lane_seeds(seed: int, lane: int, n: int) -> np.ndarray:
    """Return different seeds for `n` lanes from `lane` on, int64 [n] in 0 … 2³¹-1. Other lanes get other seeds."""
    key = np.random.SeedSequence(seed % 2**64).generate_state(2, np.uint64)
    mask = np.uint64(2**31 - 1)
    x = (np.arange(lane, lane + n, dtype=np.uint64) + (key[0] & mask)) & mask
    for shift, odd in ((16, 0x45D9F3B5), (15, 0x2C1B3C6D), (17, 0x297A2D39)):  # each line is a bijection of 31 bits
        x ^= x >> np.uint64(shift)
        x = (x * np.uint64(odd)) & mask
        x ^= key[1] & mask
    return (x ^ (x >> np.uint64(16))).astype(np.int64)


Options = TypeVar("Options")


def options(kind: Callable[..., Options], given: Mapping[str, object], title: str) -> Options:
    """Check the options `given`, and make the dataclass `kind` from them. Raises UserError like check_options."""
    check_options(given, {f.name: f.default for f in fields(kind)}, title)  # type: ignore[arg-type]
    return kind(**given)


def check_options(given: Mapping[str, object], defaults: Mapping[str, object], title: str) -> None:
    """Raises UserError if an option is unknown, or if its value has another type than the default."""
    for name, value in given.items():
        if name in APART and name not in defaults:
            raise UserError(f"{APART[name]}: {title} does not support it, only Gymnasium environments do: leave it out")
        if isinstance(value, ImageOptions):
            raise UserError(f"{value.given}: {title} has no images to change: leave it out")
        if name not in defaults:
            near = closest_names(name, defaults)
            raise UserError(f"--env-kwargs: {title}: unknown option {name!r}{near}; allowed: {', '.join(defaults)}")
        want = type(defaults[name])
        right = isinstance(value, int | float) if want is float else isinstance(value, want)
        if want in (bool, int, float, str) and (not right or (isinstance(value, bool) and want is not bool)):
            raise UserError(f"--env-kwargs: {title}: option {name}={value!r} must be of type {want.__name__}")


def closest_names(name: str, known: Iterable[str]) -> str:
    """Return ', did you mean …?' with the known name closest to `name`, or "" if no name is close."""
    lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    return f", did you mean {lower[found[0]]!r}?" if found else ""


# Names of two events in rows, with which a learner decides how far a player shares its team's rewards.


OWN_REWARD = "own_reward"  # a player's own reward
TEAM_REWARD = "team_mean"  # the mean reward of the player's team


# Gymnasium's spaces as JSON and back, so that a trained policy can act without its environment.


FILE = "spaces.json"  # file in a run's directory
OWN_LIMIT = "the environment's own"  # text for a limit of steps, in descriptions


def space_to_json(space: gym.Space) -> Row:
    """Convert a Gymnasium space of a supported kind, or of a subclass, to JSON, without its seed."""
    if (inner := subspaces(space)) is not None:
        parts = [{"key": key, "space": space_to_json(part)} for key, part in inner.items()]
        return {"kind": "Tuple" if isinstance(space, gym.Tuple) else "Dict", "parts": parts}
    if isinstance(space, gym.Box):
        ends = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **ends}
    if isinstance(space, gym.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gym.MultiDiscrete):
        found = {"nvec": space.nvec.tolist(), "start": np.broadcast_to(space.start, space.nvec.shape).tolist()}
        return {"kind": "MultiDiscrete", **found, "dtype": str(space.dtype)}
    assert isinstance(space, gym.MultiBinary)
    return {"kind": "MultiBinary", "shape": list(space.shape)}


def _numbers(ends: np.ndarray) -> Any:
    """Convert bounds to text, because JSON has no infinity. Return a list of texts, or one text if all are equal."""
    flat, read = ends.ravel(), _reader(ends.dtype)
    return repr(read(flat[0])) if flat.size and (flat == flat[0]).all() else [repr(read(x)) for x in flat]


def _reader(dtype: np.dtype) -> Callable[[Any], int | float]:
    return float if dtype.kind == "f" else int


def space_from_json(given: Row) -> gym.Space:
    """Make a space from the JSON of `space_to_json`. Raises KeyError, TypeError or ValueError if it is damaged."""
    kind = given["kind"]
    if kind in ("Tuple", "Dict"):
        parts = {part["key"]: space_from_json(part["space"]) for part in given["parts"]}
        return gym.Tuple(list(parts.values())) if kind == "Tuple" else gym.Dict([*parts.items()])  # in the parts' order
    if kind == "Box":
        shape, dtype = tuple(given["shape"]), np.dtype(given["dtype"])
        low, high = (_array(given[end], shape, dtype) for end in ("low", "high"))
        return gym.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return gym.Discrete(given["n"], start=given["start"], dtype=np.dtype(given["dtype"]).type)
    if kind == "MultiDiscrete":
        return gym.MultiDiscrete(given["nvec"], dtype=np.dtype(given["dtype"]).type, start=given["start"])
    if kind == "MultiBinary":
        return gym.MultiBinary(given["shape"])
    raise ValueError(f"kind {kind!r}")


def _array(ends: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    read = _reader(dtype)
    if isinstance(ends, str):
        return np.full(shape, read(ends), dtype)
    return np.array([read(x) for x in ends], dtype).reshape(shape)


def spec_of_spaces(seen: gym.Space, acted: gym.Space, title: str, uses: Any = None, note: str = "") -> EnvSpec:
    """Describe a lane by its observation space `seen`, and its action space `acted`.

    seen: may contain a mask of legal actions.
    uses: see conditional_actions.
    note: text to add to the description of observations.
    Raises UserError if a space is not supported.
    """
    shown = masks.without_mask(seen)
    try:
        obs, action = spaces.observation(shown, title), spaces.action(acted, title)
    except UserError as e:
        raise UserError(f"{e} {rules.rule_suffix('spaces')}") from None
    action = conditional_actions(action, uses, f"{title}: {spaces.ATTRIBUTE}")
    mask = masks.declared_mask(action, seen, title)
    text = {"observation": spaces.describe_fields(obs) + note, "actions": spaces.describe_actions(action)}
    text |= {} if mask is None else {"action mask": "from the observation"}
    own = {"observation": space_to_json(shown), "action": space_to_json(acted)}
    return EnvSpec(obs, action, describe=text, classes=spaces.classes(shown), mask=mask, spaces=own)


def of_spec(spec: EnvSpec) -> tuple[gym.Space, gym.Space]:
    """Return the spaces of observations and actions. If the spec declares none, make spaces that fit it."""
    if spec.spaces is not None:
        return space_from_json(spec.spaces["observation"]), space_from_json(spec.spaces["action"])
    made = {path: _observed(field, spec.classes.get(path, 0)) for path, field in tree.leaves(spec.obs)}
    return tree_space(tree.nest(made)), tree_space(tree.map(lambda leaf: leaf.space, spec.action))


def byte_bounds(spec: EnvSpec) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {path: (low, high)} of each part of the observations that is a Box of uint8. The bounds are arrays. If
    none are declared, they are 0 and 255.
    """
    fields = {path: f for path, f in tree.leaves(spec.obs) if f.dtype == "uint8" and path not in spec.classes}
    if not fields:
        return {}
    declared = box_parts(spec)
    fits = {path: path in declared and declared[path].shape == fields[path].shape for path in fields}
    found = {path: declared[path] if fits[path] else gym.Box(0, 255, f.shape, np.uint8) for path, f in fields.items()}
    return {path: (space.low, space.high) for path, space in found.items()}


def network_view(spec: EnvSpec) -> tuple[list[Any], list[Any]]:
    """Return the parts of observations and the parts of actions, with all properties on which a network depends."""
    bounds = {path: tuple(end.tobytes() for end in ends) for path, ends in byte_bounds(spec).items()}
    images = spec.image_leaves
    seen = [(p, field, spec.classes.get(p), bounds.get(p), p in images) for p, field in tree.leaves(spec.obs)]
    return seen, list(tree.leaves(spec.action))


def describe_views(spec: EnvSpec, other: EnvSpec) -> tuple[tuple[str, str], tuple[str, str]]:
    """Describe two specs for a comparison. Return the texts of both observations, and the texts of both actions."""
    shown = [spaces.describe_fields(s.obs) for s in (spec, other)]
    taken = [spaces.describe_actions(s.action) for s in (spec, other)]
    if len({*shown}) == 1:
        shown = [spaces.one_line(of_spec(s)[0]) for s in (spec, other)]
    return (shown[0], shown[1]), (taken[0], taken[1])


def box_parts(spec: EnvSpec) -> dict[str, gym.Box]:
    """Return {path: Box} of the parts of observations that are a Box. Images are [planes, height, width]."""
    found = tree.leaves(_tree_of(of_spec(spec)[0]))
    return {path: _as_in_rows(space) for path, space in found if isinstance(space, gym.Box)}


def _as_in_rows(space: gym.Box) -> gym.Box:
    layout = image_layout(space)
    return space if layout is None else gym.Box(layout.of(space.low), layout.of(space.high), dtype=np.uint8)


def _tree_of(space: gym.Space) -> Any:
    """Return a space as nested dicts, whose leaves are spaces without parts."""
    inner = subspaces(space)
    return space if inner is None else {key: _tree_of(part) for key, part in inner.items()}


def _observed(field: Field, classes: int | tuple[int, ...]) -> gym.Space:
    if isinstance(classes, tuple):
        return gym.MultiDiscrete(np.array(classes).reshape(field.shape))
    if classes:
        return gym.Discrete(classes)
    dtype = np.dtype(field.dtype)
    low, high = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gym.Box(low, high, field.shape, dtype.type)


def tree_space(parts: Any) -> gym.Space:
    """Make a Dict space from nested dicts of spaces. Return a single space unchanged."""
    return gym.Dict([(k, tree_space(v)) for k, v in parts.items()]) if isinstance(parts, dict) else parts


# fields of EnvSpec for several players or tasks; files of earlier versions, which had one of each, lack them
_PLAYERS: Mapping[str, Callable[[Any], Any]]
_PLAYERS = {"seats": int, "teams": tuple, "kinds": tuple, "events": tuple, "team_reward": bool, "bots": dict}
_PLAYERS |= {"tasks": tuple, "order": tuple, "task_input": str}


def spec_to_json(spec: EnvSpec) -> Row:
    """Convert a spec to JSON: the environment's spaces, and the other parts of the spec on which networks depend."""
    seen, acted = of_spec(spec)
    mask = None if spec.mask is None else {path: list(field.shape) for path, field in tree.leaves(spec.mask)}
    about = {"frames_per_step": spec.frames_per_step, "describe": dict(spec.describe), "mask": mask}
    about |= {name: kind(getattr(spec, name)) for name, kind in _PLAYERS.items()}
    about |= {} if spec.images is None else {"images": list(spec.images), "view": spec.view}
    about |= {"uses": spec.action.uses} if isinstance(spec.action, Conditional) else {}
    return {"schema": 1, "observation": space_to_json(seen), "action": space_to_json(acted), **about}


def spec_from_json(given: Row, title: str) -> EnvSpec:
    """Make a spec from the JSON of `spec_to_json`. Raises UserError if the JSON is damaged or of another version."""
    try:
        if given["schema"] != 1:
            raise ValueError(f"schema {given['schema']!r}, this version reads 1")
        both = {key: given[key] for key in ("observation", "action")}
        seen, acted = (space_from_json(part) for part in both.values())
        flat = None if given["mask"] is None else {k: Field(tuple(v), "bool") for k, v in given["mask"].items()}
        mask = None if flat is None else tree.nest(flat)
        obs, action = spaces.observation(seen, title), spaces.action(acted, title)
        action = conditional_actions(action, given.get("uses"), f"{title}: uses")
        frames, text = int(given["frames_per_step"]), dict(given["describe"])
        images = {"images": tuple(given["images"]), "view": given["view"]} if "images" in given else {}
        players = {name: kind(given[name]) for name, kind in _PLAYERS.items() if name in given}
    except UserError:
        raise
    except Exception as e:  # Gymnasium raises various exceptions
        raise UserError(f"{title} is damaged: {type(e).__name__}: {e}; put back a copy of it") from None
    return EnvSpec(obs, action, frames, text, spaces.classes(seen), mask, spaces=both, **images, **players)
