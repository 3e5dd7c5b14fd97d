"""Options of Atari games, their presets and ids, start states, published scores, and evaluation protocols."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import gymnasium

from polyplay.core.errors import UserError
from polyplay.core.machine import documentation, install_command
from polyplay.core.tree import Field
from polyplay.envs.images import BARE, IMAGES, ImageOptions
from polyplay.envs.pool import WRAPPERS, Envs, EnvSpec, closest_names, need, options, task_words
from polyplay.envs.spaces import Discrete, describe_fields

# Start states of Atari games: a JSON file from the user, for the evaluation protocol human-starts. Nothing is pickled.
#
#     {"format": "polyplay-starts", "version": 1, "game": "pong", "kind": "human", "source": "who played, when, how",
#      "starts": [{"actions": ["NOOP*12", "FIRE", "RIGHT*4"], "seed": 0, "ram": "sha256 of the RAM at the start"},
#                 {"state": "base64 of ALEState.serialize()", "frames": 5120}]}
#
# A start is either a list of actions after a reset, in ALE's button names ("RIGHT*4": RIGHT for four frames), or a
# saved state of the emulator with the number of frames played before that state. "seed" (default 0) is the emulator's
# `random_seed`. If "ram" is given, the RAM at the start must have this digest. "kind" is "human", or "substitute" for
# any other source, which labels of scores then name. The start states of the papers were never released.


FORMAT, VERSION = "polyplay-starts", 1
KINDS = ("human", "substitute")


@dataclass(frozen=True)
class Start:
    """Start state of a game, reached by button presses or restored from a saved state. `presses`: pairs (button number,
    frames to hold the button). `frames`: number of frames before the agent plays.
    """

    presses: tuple[tuple[int, int], ...]
    frames: int
    seed: int = 0
    ram: str = ""  # SHA-256 of the RAM at the start; "": not checked
    state: bytes = b""  # saved state of the emulator, instead of presses; b"": none


@dataclass(frozen=True)
class Starts:
    path: str
    game: str
    kind: str
    source: str
    starts: tuple[Start, ...]
    digest: str  # SHA-256 of the file


def load_starts(path: str, game: str = "") -> Starts:
    """Read a file of start states. `game`: ROM that the file must be for, or "" for any ROM. Raises UserError if the
    file is missing or invalid, or is for another ROM.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise UserError(f"--starts: cannot read {path}: {e.strerror}; give a file of start states") from None
    found = _parse(path, data)
    need(found.game == (game or found.game), f"--starts: {path} has start states of {found.game}, the run plays {game}")
    return found


@lru_cache(maxsize=4)
def _parse(path: str, data: bytes) -> Starts:
    try:
        content = json.loads(data)
    except ValueError as e:
        raise UserError(f"--starts: {path} is not JSON: {e}") from None
    own = isinstance(content, dict) and (content.get("format"), content.get("version")) == (FORMAT, VERSION)
    need(own, f'--starts: {path} must be an object with "format": "{FORMAT}" and "version": {VERSION}')
    game, kind, source, rows = (content.get(name) for name in ("game", "kind", "source", "starts"))
    named = all(word and isinstance(word, str) for word in (game, source)) and kind in KINDS
    text = f'"game", "kind" ({" or ".join(KINDS)}) and "source" must be text, given {[game, kind, source]}'
    need(named, f"--starts: {path}: {text}")
    need(isinstance(rows, list) and rows != [], f'--starts: {path}: "starts" must be a list of at least one start')
    starts = tuple(_start(row, f"--starts: {path}, start {i}") for i, row in enumerate(rows))
    return Starts(path, game, kind, source, starts, hashlib.sha256(data).hexdigest())


ROW = (
    """{"actions": ["RIGHT*4", …]} or {"state": base64, "frames": a number}, with "seed" a number and "ram" a SHA-256"""
)


def _start(row: Any, where: str) -> Start:
    try:
        (form,) = {"actions", "state"} & row.keys()
        more = row.get("seed", 0), row.get("ram", "")
        presses = tuple(_press(str(word), where) for word in row.get("actions", ()))
        state = base64.b64decode(row.get("state", ""), validate=True)
        frames = sum(n for _, n in presses) if form == "actions" else row["frames"]
        kinds = list(map(type, (frames, *more, row.get("actions", []))))
        if kinds != [int, int, str, list] or min(frames, more[0]) < 0:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):  # binascii.Error is a ValueError
        raise UserError(f"{where}: given {str(row)[:80]}, must be {ROW}") from None
    return Start(presses, frames, *more, state)


def _press(word: str, where: str) -> tuple[int, int]:
    import ale_py

    button, _, frames = word.partition("*")
    known = ale_py.Action.__members__
    good = button in known and (frames or "1").isdigit()
    need(good, f"{where}: {word!r} must be one of ALE's buttons, with a number of frames, such as RIGHT*4")
    return known[button].value, int(frames or 1)


def spelled(buttons: list[str]) -> list[str]:
    """Write one button per frame in the form of a starts file: ["NOOP", "NOOP", "FIRE"] → ["NOOP*2", "FIRE"]."""
    runs = [(button, len(list(same))) for button, same in groupby(buttons)]
    return [button if n == 1 else f"{button}*{n}" for button, n in runs]


def written(game: str, kind: str, source: str, starts: Sequence[Mapping[str, object]]) -> bytes:
    """Return the contents of a file of start states, as bytes."""
    head = {"format": FORMAT, "version": VERSION, "game": game, "kind": kind, "source": source}
    rows = ",\n  ".join(json.dumps(start) for start in starts)
    return (json.dumps(head)[:-1] + f', "starts": [\n  {rows}\n]}}\n').encode()


# Options for how an Atari game is played and shown, and presets with the choices of each paper or its released code.
#
# A preset sets how frames are processed and how episodes start and end. The loss, not the game, clips rewards.


LEAST = dict.fromkeys(("frameskip", "size", "stack", "max_frames", "stride"), 1)
LEAST |= dict.fromkeys(("frameskip_min", "width", "noop_min", "noop_max", "crop"), 0)


@dataclass(frozen=True)
class Atari:
    """Options (`Envs.options`) of an Atari game. The defaults are the usual protocol of A2C and IMPALA."""

    frameskip: int = 4  # frames per action
    frameskip_min: int = 0  # if above 0, each step draws its number of frames uniformly from frameskip_min … frameskip
    sticky: float = 0.0  # probability that a frame repeats the previous action (Machado et al. 2018: 0.25)
    full_actions: bool = False  # all 18 actions instead of the game's minimal set
    size: int = 84  # height in pixels; also the width if `width` is 0
    width: int = 0
    stack: int = 4  # number of frames in an observation, the newest last
    # older planes after a reset: "zero", "repeat" (the first frame), or "play" (no-op steps until the stack is full)
    stack_reset: Literal["zero", "repeat", "play"] = "zero"
    maxpool: bool = True  # a plane is the pixel-wise maximum of a step's last two frames
    noop_max: int = 30  # a game starts with no-op frames; their number is uniform in noop_min … noop_max-1
    fire_reset: bool = True  # the first no-op frame presses FIRE instead, in games with this action
    # "terminate": a lost life ends the learner's episode (terminated), not the game, which continues with a NOOP step
    life_loss: Literal["ignore", "terminate"] = "ignore"
    max_frames: int = 108_000  # the game is truncated after this number of frames (108,000: 30 minutes)
    # from here to `resize`, values other than the defaults need ale-py's plain emulator, not its vector environment:
    noop_min: int = 0
    start: str = "noops"  # played after a reset: "noops", or buttons such as "FIRE*4", see `atari_emulator.script`
    life_start: str = ""  # played after a lost life, in the words of `start`; then a new stack begins; "": a NOOP step
    # conversion to gray: "ale" uses ALE's gray palette, before maxpool; the others convert colors, after maxpool
    gray: Literal["ale", "opencv", "luma", "luma_cut", "luma_swapped"] = "ale"
    crop: int = 0  # pixel rows removed at the bottom of the screen
    # "area", "bilinear" and "nearest" resize as OpenCV does, "pillow" as Pillow's BILINEAR, which smooths
    resize: Literal["area", "bilinear", "nearest", "pillow"] = "area"
    # "native": ale-py's vector environment; "plain": ale-py's emulator, stepped by Polyplay; "auto": the faster of both
    # for these options and threads
    pipeline: Literal["auto", "native", "plain"] = "auto"
    starts: str = ""  # file of start states; game g of lane l starts at state number l + g·stride
    stride: int = 1

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            need(value in allowed, f"option {name}={value!r} must be one of {', '.join(allowed)}")
        need(0 <= self.sticky <= 1, f"option sticky={self.sticky} must lie between 0 and 1")
        for name, least in LEAST.items():
            value = getattr(self, name)
            need(value >= least, f"option {name}={value} must be at least {least}")
        skips = f"frameskip_min={self.frameskip_min}, frameskip={self.frameskip}"
        need(self.frameskip_min <= self.frameskip, f"options {skips}: the first must not be larger")
        noops, starts = f"noop_min={self.noop_min}, noop_max={self.noop_max}", f"starts={self.starts!r}"
        need(self.noop_min < max(self.noop_max, 1), f"options {noops}: the first must be smaller")
        need(not (self.starts and self.sticky), f"options {starts}, sticky={self.sticky}: start states need sticky=0")
        beyond = self.beyond if self.pipeline == "native" else ""
        need(not beyond, f"option pipeline='native': ale-py's vector environment has no {beyond}; use 'plain'")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an observation: (planes, height, width)."""
        return self.stack, self.size, self.width or self.size

    @property
    def frames(self) -> int:
        """Number of frames per step. If each step draws this number at random, return the mean, rounded down."""
        return (self.frameskip_min + self.frameskip) // 2 if self.frameskip_min else self.frameskip

    @property
    def beyond(self) -> str:
        """Options with changed values that ale-py's vector environment does not support: `option=value, …`, or ""."""
        plain = ("frameskip_min", "noop_min", "start", "life_start", "gray", "crop", "resize", "starts")
        changed = [f"{k}={getattr(self, k)!r}" for k in plain if getattr(self, k) != getattr(Atari, k)]
        return ", ".join(changed + (["stack_reset='play'"] if self.stack_reset == "play" else []))

    @property
    def native(self) -> bool:
        """Whether ale-py's vector environment plays the game. Otherwise, ale-py's plain emulator plays it."""
        return self.pipeline == "native" or (self.pipeline == "auto" and not self.beyond)


PIPELINES = {
    "auto": "ale-py's vector environment, or plain emulators where one thread steps them",
    "native": "ale-py's vector environment",
    "plain": "ale-py's plain emulator",
}
CHOICES = {name: get_args(hint) for name, hint in get_type_hints(Atari).items() if get_args(hint)}

# Presets also set choices that equal a default, so that a new default would not change them.
_COMMON: dict[str, object] = {"frameskip": 4, "sticky": 0.0, "full_actions": False, "size": 84, "stack": 4}
_COMMON |= {"maxpool": True, "max_frames": 108_000}
_NATURE = _COMMON | {"noop_max": 31, "fire_reset": False, "stack_reset": "zero", "life_loss": "terminate"}
_DEEPMIND = _COMMON | {"noop_max": 30, "fire_reset": True, "stack_reset": "zero", "life_loss": "terminate"}
_ACCEL = _NATURE | {"size": 104, "width": 80, "crop": 2, "resize": "bilinear"}
_ACCEL |= {"start": "NOOP FIRE UP noops", "life_start": "NOOP FIRE UP"}

PRESETS: dict[str, dict[str, object]] = {  # preset → options of class Atari; all others have their defaults
    # google-deepmind/dqn and alewrap, as released: run_gpu, GameEnvironment.lua, GameScreen.lua, Scale.lua
    "dqn2015": _NATURE | {"gray": "luma", "start": "noops NOOP*2", "life_start": "noops NOOP*2", "noop_max": 30},
    # google-deepmind/dqn_zoo: processors.py, gym_atari.py, dqn/run_atari.py
    "dqn_zoo": _NATURE | {"gray": "luma_cut", "resize": "pillow", "noop_min": 1},
    # muupan/async-rl ale.py, a reproduction; Mnih et al. 2016 released no code
    "a3c": _NATURE | {"gray": "luma_swapped", "resize": "bilinear", "life_start": "noops"},
    # NVlabs/GA3C Environment.py, ProcessAgent.py with gym's PongDeterministic-v0 of February 2017
    "ga3c": _COMMON | {
        "sticky": 0.25, "maxpool": False, "noop_max": 0, "fire_reset": False, "stack_reset": "play",
        "life_loss": "ignore", "gray": "luma", "resize": "bilinear", "max_frames": 400_000,
    },
    # OpenAI baselines' wrap_deepmind, as far as ale-py's vector environment can do it; used by system a2c
    "baselines": _DEEPMIND,
    # OpenAI baselines as released: atari_wrappers.py, and VecFrameStack of run.py
    "wrap_deepmind": _NATURE | {
        "gray": "opencv", "noop_min": 1, "start": "noops FIRE*4,#2*4", "life_start": "NOOP*4 FIRE*4,#2*4",
    },
    # astooke/accel_rl atari_env.py as it runs: the resize flag is passed to cv2.resize as dst, so resizing is bilinear
    "accel": _ACCEL,
    # astooke/accel_rl atari_env.py with the resizing that its authors intended
    "accel_nearest": _ACCEL | {"resize": "nearest"},
    # astooke/rlpyt atari_env.py, but rlpyt removes a row at the top and a row at the bottom, not two at the bottom
    "rlpyt": _ACCEL | {"start": "NOOP noops", "life_start": "NOOP"},
    # Espeholt et al. 2018, appendix G, as far as ale-py's vector environment can do it; used by system impala
    "impala": _DEEPMIND | {"stack_reset": "repeat"},
    # Horgan et al. 2018, according to Kapturowski et al. 2019 and reproductions; the resizing method is ours
    "apex": _NATURE | {"full_actions": True, "max_frames": 50_000},
    # Kapturowski et al. 2019, section 2.3 and appendix; the resizing method is ours
    "r2d2": _NATURE | {"full_actions": True, "life_loss": "ignore"},
    # google/dopamine atari_lib.py; Machado et al. 2018
    "dopamine": _NATURE | {"sticky": 0.25, "noop_max": 0, "life_loss": "ignore"},
    # ALE/NAME-v5 as ale-py registers it, without the maximum of two frames
    "v5": _NATURE | {"sticky": 0.25, "noop_max": 0, "life_loss": "ignore", "maxpool": False},
}  # fmt: skip


def atari_preset(name: str) -> dict[str, object]:
    """Return the options of an Atari preset. Raises UserError if no preset has this name."""
    if name not in PRESETS:
        raise UserError(f"--atari: {name!r} given{closest_names(name, PRESETS)}; allowed: auto, {', '.join(PRESETS)}")
    return dict(PRESETS[name])


# Gymnasium ids of Atari games. ALE/NAME-v5 names only the game, and an Atari preset decides how the game is played.
# Older ids also set the frames per action and whether actions are sticky; the preset decides the rest.


OLD_ID = re.compile(r"(?:ale_py:)?([A-Z][A-Za-z0-9]*?)(-ram)?(NoFrameskip|Deterministic|)(?:-v([04]))?")
SKIPS: dict[str, dict[str, object]] = {  # word after the game's name in an older id → options
    "NoFrameskip": {"frameskip": 4, "maxpool": True},  # Gymnasium plays 1 frame per action, and the usual wrapper 4
    "Deterministic": {"frameskip": 4, "maxpool": False},
    "": {"frameskip_min": 2, "frameskip": 4, "maxpool": False},
}


def id_options(name: str) -> dict[str, object]:
    """Return the options that an older Atari id sets, such as 'Pong-v4'. Newer ids set none, so return {}."""
    found = OLD_ID.fullmatch(name)
    if name.startswith("ALE/") or found is None:
        return {}
    sticky = {"sticky": 0.25 if found[4] == "0" else 0.0, "full_actions": False}
    early = {"frameskip": 3} if (found[1], found[3]) == ("SpaceInvaders", "Deterministic") else {}  # as in gym's id
    return {**SKIPS[found[3]], **early, **sticky}


def current_id(name: str) -> str:
    """Return the current id of the game that an older id names: 'Pong-v0' → 'ALE/Pong-v5'."""
    found = OLD_ID.fullmatch(name)
    return f"ALE/{found[1]}-v5" if found else name


def _id_text(name: str) -> str:
    """Describe the options that an Atari id sets."""
    if not id_options(name):
        return f"{name} names the game, --atari says how it is played (v5: as Gymnasium registers it)"
    own = "1 frame a step, with the 4 of the usual wrapper" if "NoFrameskip" in name else "its own frames a step"
    return f"{name}: {own}; the picture and the starts are --atari's"


def is_game(name: object, given: Mapping[str, object]) -> bool:
    """Tell whether Polyplay's own Atari code plays the environment `name`. For several tasks, tell whether it plays all
    of them. Gymnasium plays older ids if the options `given` contain a wrapper or obs_type=ram.
    """
    if words := task_words(name):
        return all(is_game(task, given) for task, _ in words)
    if not isinstance(name, str) or name.startswith("ALE/"):
        return isinstance(name, str)
    found = OLD_ID.fullmatch(name)
    if found is None or found[2] or given.get(WRAPPERS) or given.get("obs_type") == "ram":
        return False
    try:
        known = found[1] in native_games()  # this call also registers ale-py's ids
    except UserError:  # ale-py is missing, which a later message says
        return found[3] != ""
    id_ = f"{found[1]}{found[3]}-v{found[4] or 4}"
    return known and (_is_ales(id_) if id_ in gymnasium.registry else found[3] != "")


def read_options(title: str, given: Mapping[str, object]) -> Atari:
    """Return the options of a game with gray images. Options in `given` replace those of the id. Raises UserError."""
    found: dict[str, Any] = {**id_options(title), **given}
    if (shown := found.pop(IMAGES, None)) is not None:
        height, width = shown.size or (0, 0)
        found |= {"stack": shown.stack} if shown.stack else {}
        found |= {"frameskip": shown.skip, "frameskip_min": 0} if shown.skip else {}
        found |= {"size": height, "width": width} if height else {}
    return options(Atari, found, title)


def registered(name: str) -> tuple[str, dict[str, object]]:
    """Return the id and the keyword arguments with which Gymnasium makes the environment of an older Atari id. For a
    "-ram" id, raises UserError, which names a replacement.
    """
    found = OLD_ID.fullmatch(name)
    if found is None:
        return name, {}
    with contextlib.suppress(ImportError):
        import ale_py  # noqa: F401 - registers its ids
    game, memory, flavor, version = found.groups()
    skips = flavor == "Deterministic"
    id_ = f"{game}{'NoFrameskip' if skips else flavor}-v{version or 4}"
    more = {"frameskip": id_options(name)["frameskip"]} if skips else {}
    if id_ not in gymnasium.registry or not _is_ales(id_):
        return name, {}
    if memory:
        words = "".join(f" {k}={v}" for k, v in more.items())
        cure = f"write --env {id_} --env-kwargs obs_type=ram{words}"
        raise UserError(f"--env: {name} given, which shows the console's memory: {cure}")
    return id_, more


def current_names() -> list[str]:
    """Return all registered ids. For ale-py, return only ALE/NAME-v5 of all single-player games."""
    known = [id_ for id_ in gymnasium.registry if not _is_ales(id_)]
    with contextlib.suppress(UserError):  # ale-py may be missing
        known += [f"ALE/{title}-v5" for title in native_games()]
    return known


def _is_ales(id_: str) -> bool:
    return str(gymnasium.registry[id_].entry_point).startswith("ale_py")


STACKS = {"zero": "zeros", "repeat": "first frame repeated", "play": "filled by steps of NOOP"}
NO_SINGLE_PLAYER = {"combat", "joust", "mazecraze", "maze_craze", "warlords"}


def native_games() -> dict[str, str]:
    """Return {name in an id: ROM name}, such as {"MsPacman": "ms_pacman"}. Raises UserError if ale-py is missing."""
    try:
        from ale_py import roms
    except ImportError as e:
        raise UserError(f"ALE games need ale-py ({e}): {install_command('atari')}") from None
    return {_title(rom): rom for rom in roms.get_all_rom_ids() if rom not in NO_SINGLE_PLAYER}


def _title(game: str) -> str:
    """Convert a ROM name to the name in an id: 'ms_pacman' → 'MsPacman'."""
    return game.title().replace("_", "")


def rom(name: str) -> str:
    """Return an id's ROM name: 'ALE/MsPacman-v5' or 'MsPacman-v4' → 'ms_pacman'. Raises UserError if unknown."""
    known = native_games()
    old = None if name.startswith("ALE/") else OLD_ID.fullmatch(name)
    game = old[1] if old else name.removeprefix("ALE/")
    head, dash, version = game.rpartition("-v")
    game = head if dash and version.isdigit() else game
    for title, found in known.items():
        if game.lower() in (title.lower(), found):
            return found
    if game.lower() in NO_SINGLE_PLAYER:
        raise UserError(f"{name}: this game has no single-player mode")
    hint = closest_names(f"ALE/{game}-v5", [f"ALE/{title}-v5" for title in known])
    raise UserError(f"--env: unknown Atari game {name!r}{hint} (one of {len(known)})")


def actions_of(game: str, full: bool) -> tuple[str, ...]:
    """Return the names of a game's actions, by number. `full`: whether to return all 18, or else the minimal set."""
    return _action_sets(game)[full]


@lru_cache(maxsize=128)
def _action_sets(game: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a game's minimal set of actions, and the names of all 18 actions."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(str(ale_py.roms.get_rom_path(game)))
    own, every = (tuple(a.name for a in found) for found in (ale.getMinimalActionSet(), ale.getLegalActionSet()))
    return own, every


def fires(game: str) -> bool:
    """Tell whether FIRE is in a game's minimal set of actions."""
    return "FIRE" in actions_of(game, False)


def describe(envs: Envs) -> EnvSpec:
    """Describe an Atari game. Raises UserError if the game or an option is unknown, or ale-py is missing."""
    game, o = rom(envs.title), read_options(envs.title, envs.options)
    actions = actions_of(game, o.full_actions)
    obs = Field(o.shape, "uint8")
    lives = "ignored" if o.life_loss == "ignore" else "terminates for the learner, the game continues"
    lives += f" with {o.life_start} and a new stack" if o.life_loss == "terminate" and o.life_start else ""
    text = {
        "game": game,
        "id": _id_text(envs.title),
        "frameskip": _skip_text(o),
        "sticky": f"{o.sticky:g}",
        "actions": f"{len(actions)} ({'all' if o.full_actions else 'minimal'}): {' '.join(actions)}",
        "stack": f"{o.stack}, {STACKS[o.stack_reset]} after a reset",
        "no-ops": _start_native(o, game),
        "life loss": lives,
        "observation": f"{describe_fields(obs)} gray{_picture(o)}",
        "max frames": str(o.max_frames),
        "pipeline": PIPELINES["plain" if not o.native else o.pipeline],
    }
    images = _named_images(envs.options.get(IMAGES, ImageOptions()).leaves, envs.title)
    return EnvSpec(obs, Discrete(len(actions)), frames_per_step=o.frames, describe=text, images=images)


def _named_images(leaves: tuple[str, ...] | None, title: str) -> tuple[str, ...] | None:
    """Return the paths of the images that --images names. Return None if the option is not given. Raises UserError."""
    if leaves is None:
        return None
    need(set(leaves) <= {BARE}, f"--images: {','.join(leaves)} given; allowed for {title}: none, or {BARE}")
    return tuple("" for _ in leaves)


def _skip_text(o: Atari) -> str:
    drawn = f"{o.frameskip_min}–{o.frameskip}, drawn every step" if o.frameskip_min else str(o.frameskip)
    return drawn + (", maximum of the last two frames" if o.maxpool else "")


def _start_native(o: Atari, game: str) -> str:
    if o.starts:
        return f"none; start states of {o.starts}"
    fire = " with FIRE first" if o.fire_reset and fires(game) else ""
    text = f"{o.noop_min}–{max(o.noop_max - 1, 0)} frames{fire}"
    return text if o.start == "noops" else f"{text}, in {o.start!r}" if "noops" in o.start else o.start or "none"


def _picture(o: Atari) -> str:
    parts = (o.gray != "ale" and o.gray, o.crop and f"without the last {o.crop} rows", o.resize != "area" and o.resize)
    return "".join(f", {part}" for part in parts if part)


# Scores of random play and of humans in the literature's 57 Atari games, to normalize other scores.
#
# atari_scores.csv has raw scores, also of published agents; SOURCES.md in its folder names each column's source.


TABLES = Path(__file__).parents[1] / "evaluation"
Ends = Mapping[str, tuple[float, float]]  # game → (score of random play, score of a human)
PINBALL = "video_pinball"
BASELINES = {  # name → description, suffix of the columns "random" and "human"
    "nature": ("49 games, no-op starts, Mnih et al. 2015", "_nature"),
    "noop57": ("57 games, no-op starts, google-deepmind/dqn_zoo atari_data.py", ""),
    "human-starts": ("57 games, human starts, Nair et al. 2015, van Hasselt et al. 2016", "_humanstarts"),
}


def score_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of published scores."""
    with (TABLES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=2)
def score_table(name: str) -> dict[str, dict[str, float]]:
    """Return {column: {game: score}} of a CSV file of scores. Empty cells are left out."""
    rows = score_rows(name)
    return {k: {r["game"]: float(r[k]) for r in rows if r[k]} for k in rows[0] if k != "game"}


def baseline_scores(baselines: str) -> dict[str, tuple[float, float]]:
    """Return {game: (score of random play, score of a human)}. `baselines`: a name in BASELINES."""
    table, (_, suffix) = score_table("atari_scores.csv"), BASELINES[baselines]
    low, high = dict(table[f"random{suffix}"]), table[f"human{suffix}"]
    if baselines != "nature":
        low[PINBALL] = 0.0
    return {game: (low[game], high[game]) for game in high if game in low}


def normalize(scores: Mapping[str, float], ends: Ends) -> dict[str, float]:
    """Return human-normalized scores in percent of the games in `ends`: random play is 0, and a human is 100."""
    return {g: 100.0 * (x - ends[g][0]) / (ends[g][1] - ends[g][0]) for g, x in scores.items() if g in ends}


def atari57() -> list[str]:
    """Return the ids of the literature's 57 Atari games."""
    return [f"ALE/{_title(game)}-v5" for game in sorted(score_table("atari_scores.csv")["human"])]


# Evaluation protocols: how games start and end, and how many are played. See docs/guides/evaluation.md.
#
# Images, actions and frames per action are those of the agent's training. Returns are undiscounted sums of unclipped
# rewards over whole games.


Options = dict[str, int | float | str]


@dataclass(frozen=True)
class Protocol:
    name: str
    episodes: int  # number of games in the protocol's source
    what: str
    baselines: tuple[str, ...] = ()  # names of BASELINES that suit the protocol's scores
    options: Options = field(default_factory=dict)  # options of class Atari that the protocol sets
    board: bool = False  # whether the protocol is for board games, which evaluation/matches plays


_PLAIN: Options = {"start": "noops", "life_start": "", "fire_reset": False, "life_loss": "ignore", "pipeline": "auto"}
_PLAIN |= {"sticky": 0.0, "noop_min": 0, "noop_max": 31, "max_frames": 108_000}
_SHORT: Options = {**_PLAIN, "max_frames": 18_000}
_FILE = "start states of a file, 108,000 frames with those before the start; only what follows counts"
_STICKY = "sticky actions of 0.25, no no-ops, 108,000 frames"

ALL = (
    Protocol("run", 30, "as the run's own games start and end"),
    # Mnih et al. 2015; Nair et al. 2015; van Hasselt et al. 2016 (100 games)
    Protocol("null-op", 30, "0 to 30 no-ops, 18,000 frames (5 minutes)", ("nature", "noop57"), _SHORT),
    # Wang et al. 2016; Schaul et al. 2016 and most later papers
    Protocol("null-op-30min", 100, "0 to 30 no-ops, 108,000 frames (30 minutes)", ("noop57", "nature"), _PLAIN),
    # google-deepmind/dqn_zoo; OpenAI baselines' NoopResetEnv
    Protocol("null-op-1-30", 100, "1 to 30 no-ops, 108,000 frames", ("noop57", "nature"), {**_PLAIN, "noop_min": 1}),
    # Nair et al. 2015; van Hasselt et al. 2016
    Protocol("human-starts", 100, _FILE, ("human-starts",), {**_PLAIN, "noop_max": 0}),
    # Machado et al. 2018; google/dopamine (we chose the number of games)
    Protocol("sticky", 100, _STICKY, ("noop57",), {**_PLAIN, "sticky": 0.25, "noop_max": 0}),
    # a protocol of Polyplay, for board games
    Protocol("versus", 100, "a match from random openings, with both colors", board=True),
)
PROTOCOLS = {p.name: p for p in ALL}


def protocol(name: str) -> Protocol:
    """Return an evaluation protocol by name. Raises UserError if no protocol has this name."""
    if name not in PROTOCOLS:
        raise UserError(f"--protocol: {name!r} given{closest_names(name, PROTOCOLS)}; allowed: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def game(envs: Envs) -> str | None:
    """Return the ROM name of a run's Atari game, such as "ms_pacman", or None if the run does not play a single Atari
    game. In a run with several tasks, `envs.only` selects the task.
    """
    if words := task_words(envs.name):
        return game(replace(envs, name=words[envs.only][0], only=-1)) if envs.only >= 0 else None
    return rom(envs.title) if is_game(envs.name, envs.options) else None


def plays_games(envs: Envs) -> bool:
    """Tell whether a run plays only Atari games."""
    return is_game(envs.name, envs.options)


def is_board(envs: Envs) -> bool:
    """Tell whether a run plays a board game (game:NAME)."""
    return envs.title.startswith("game:")


def _check(how: Protocol, envs: Envs) -> None:
    here = [p.name for p in ALL if p.name == "run" or (is_board(envs) if p.board else plays_games(envs))]
    if how.name not in here:
        kind = "board games (game:NAME)" if how.board else "Atari games"
        allowed = f"allowed here: {', '.join(here)}"
        raise UserError(f"--protocol: {how.name} is for {kind}, this run plays {envs.title}; {allowed}")


def apply(how: Protocol, envs: Envs, starts: str | None = None) -> tuple[Envs, Starts | None]:
    """Return the run's environments with the options of an evaluation protocol, and the start states in the file
    `starts` (or None). Raises UserError if the protocol or the file does not suit the environments.
    """
    meant = starts is None or how.name == "human-starts"
    need(meant, f"--starts {starts} is for --protocol human-starts, {how.name} given")
    _check(how, envs)
    if how.name == "run" or how.board:
        return envs, None
    options, title = {**envs.options, **how.options}, str(game(envs))
    if how.name != "human-starts":
        return replace(envs, options=options), None
    if starts is None:
        needs = f"start states of {title} as {documentation('docs/guides/evaluation.md')} says"
        ways = "the papers' were never released, `polyplay evaluate RUN --save-starts FILE` makes labeled substitutes"
        raise UserError(f"--protocol human-starts needs --starts FILE, {needs}; {ways}")
    found = load_starts(starts, title)
    late = [i for i, s in enumerate(found.starts) if s.frames >= options["max_frames"]]
    if late:
        most = options["max_frames"]
        raise UserError(f"--starts: {starts}, start {late[0]}: more than {most - 1} frames were played before it")
    return replace(envs, options={**options, "starts": starts}), found


def label(how: Protocol, starts: Starts | None) -> str:
    """Return the protocol's name for tables. If the start states are not from humans, the name says so."""
    return how.name if starts is None or starts.kind == "human" else f"{how.name} ({starts.kind})"
