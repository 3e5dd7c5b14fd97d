"""How an Atari game is played and shown: the options, and what each paper or its released code chose, by name.

A preset fixes everything that concerns frames and episodes. Rewards stay raw: the loss clips them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from polyplay.common.errors import UserError
from polyplay.envs.pool import closest_names

LEAST = dict.fromkeys(("frameskip", "size", "stack", "max_frames", "stride"), 1)
LEAST |= dict.fromkeys(("width", "noop_min", "noop_max", "crop"), 0)


@dataclass(frozen=True)
class Atari:
    """Options of `Envs` for ALE games. Defaults are the common A2C/IMPALA protocol, presets choose
    their own.
    """

    frameskip: int = 4  # frames that an action lasts
    sticky: float = 0.0  # chance that a frame repeats the action before (Machado et al. 2018: 0.25)
    full_actions: bool = False  # all 18 actions instead of the game's own
    size: int = 84  # pixels of the height, and of the width where that is 0
    width: int = 0
    stack: int = 4  # newest frame last
    # planes before the first frame: "zero", "repeat" that frame, "play" no-ops until full
    stack_reset: Literal["zero", "repeat", "play"] = "zero"
    maxpool: bool = True  # pixelwise maximum of the last two frames
    noop_max: int = 30  # an episode starts after noop_min … noop_max-1 frames of no-ops, drawn evenly
    fire_reset: bool = True  # the first of these frames presses FIRE, in games that have it
    # "terminate": a lost life is terminated (not over), the game goes on with a NOOP
    life_loss: Literal["ignore", "terminate"] = "ignore"
    max_frames: int = 108_000  # then the game is truncated (30 minutes of play)
    # what follows needs the plain emulator wherever it differs from here:
    noop_min: int = 0
    start: str = "noops"  # how a game starts, see `emulator.script`: "noops", buttons such as "FIRE*4"
    life_start: str = ""  # how it goes on after a lost life, in the same words, with a new stack; "": one step of NOOP
    # "ale": its palette, before the maximum; else after it, from colours: see `resize`
    gray: Literal["ale", "opencv", "luma", "luma_cut", "luma_swapped"] = "ale"
    crop: int = 0  # rows cut off at the bottom of the screen
    # area, bilinear, nearest as OpenCV's, or pillow: its smoothed bilinear
    resize: Literal["area", "bilinear", "nearest", "pillow"] = "area"
    # "native": ale-py's vector environment; "plain": its emulator, driven by us
    pipeline: Literal["auto", "native", "plain"] = "auto"
    starts: str = ""  # a file of start states (envs/starts): the g-th game of lane l begins at number l + g·stride
    stride: int = 1

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                words = " or ".join(map(repr, allowed)) if len(allowed) == 2 else f"one of {', '.join(allowed)}"
                raise UserError(f"option {name}={getattr(self, name)!r} must be {words}")
        if not 0 <= self.sticky <= 1:
            raise UserError(f"option sticky={self.sticky} must lie between 0 and 1")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"option {name}={getattr(self, name)} must be at least {least}")
        if self.noop_min >= max(self.noop_max, 1):
            raise UserError(f"options noop_min={self.noop_min}, noop_max={self.noop_max}: the first must be smaller")
        if self.starts and self.sticky:
            raise UserError(f"options starts={self.starts!r}, sticky={self.sticky}: start states need sticky=0")
        if self.pipeline == "native" and self.beyond:
            raise UserError(f"option pipeline='native': ale-py's vector environment has no {self.beyond}; use 'plain'")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an observation: planes, height, width."""
        return self.stack, self.size, self.width or self.size

    @property
    def beyond(self) -> str:
        """What ale-py's vector environment cannot do of this, as `option=value`; "" where it can do all."""
        plain = ("noop_min", "start", "life_start", "gray", "crop", "resize", "starts")
        changed = [f"{k}={getattr(self, k)!r}" for k in plain if getattr(self, k) != getattr(Atari, k)]
        return ", ".join(changed + (["stack_reset='play'"] if self.stack_reset == "play" else []))

    @property
    def native(self) -> bool:
        """Whether ale-py's vector environment serves it, else the plain emulator."""
        return self.pipeline == "native" or (self.pipeline == "auto" and not self.beyond)


CHOICES = {name: get_args(hint) for name, hint in get_type_hints(Atari).items() if get_args(hint)}

# Whole protocols: nothing that a paper fixes is left to a default that may change.
_COMMON: dict[str, object] = {"frameskip": 4, "sticky": 0.0, "full_actions": False, "size": 84, "stack": 4}
_COMMON |= {"maxpool": True, "max_frames": 108_000}
_NATURE = _COMMON | {"noop_max": 31, "fire_reset": False, "stack_reset": "zero", "life_loss": "terminate"}
_DEEPMIND = _COMMON | {"noop_max": 30, "fire_reset": True, "stack_reset": "zero", "life_loss": "terminate"}
_ACCEL = _NATURE | {"size": 104, "width": 80, "crop": 2, "resize": "bilinear"}
_ACCEL |= {"start": "NOOP FIRE UP noops", "life_start": "NOOP FIRE UP"}

PRESETS: dict[str, dict[str, object]] = {  # options of Atari; what is not named has its default
    # google-deepmind/dqn and alewrap as released: run_gpu, GameEnvironment.lua, GameScreen.lua, Scale.lua
    "dqn2015": _NATURE | {"gray": "luma", "start": "noops NOOP*2", "life_start": "noops NOOP*2", "noop_max": 30},
    # google-deepmind/dqn_zoo: processors.py, gym_atari.py, dqn/run_atari.py
    "dqn_zoo": _NATURE | {"gray": "luma_cut", "resize": "pillow", "noop_min": 1},
    # muupan/async-rl ale.py, the reproduction; Mnih et al. 2016 released no code
    "a3c": _NATURE | {"gray": "luma_swapped", "resize": "bilinear", "life_start": "noops"},
    # NVlabs/GA3C Environment.py, ProcessAgent.py with gym's PongDeterministic-v0 of February 2017
    "ga3c": _COMMON | {
        "sticky": 0.25, "maxpool": False, "noop_max": 0, "fire_reset": False, "stack_reset": "play",
        "life_loss": "ignore", "gray": "luma", "resize": "bilinear", "max_frames": 400_000,
    },
    # OpenAI baselines' wrap_deepmind, as far as ale-py's vector environment does it; system a2c
    "baselines": _DEEPMIND,
    # OpenAI baselines as released: atari_wrappers.py, and VecFrameStack of run.py
    "wrap_deepmind": _NATURE | {
        "gray": "opencv", "noop_min": 1, "start": "noops FIRE*4,#2*4", "life_start": "NOOP*4 FIRE*4,#2*4",
    },
    # astooke/accel_rl atari_env.py as it runs: cv2.resize gets its flag in the place of dst
    "accel": _ACCEL,
    # astooke/accel_rl atari_env.py as it reads
    "accel_nearest": _ACCEL | {"resize": "nearest"},
    # astooke/rlpyt atari_env.py; it cuts a row at the top and one at the bottom instead of two there
    "rlpyt": _ACCEL | {"start": "NOOP noops", "life_start": "NOOP"},
    # Espeholt et al. 2018, appendix G, as far as ale-py's vector environment does it; system impala
    "impala": _DEEPMIND | {"stack_reset": "repeat"},
    # Horgan et al. 2018, by what Kapturowski et al. 2019 and reproductions say of it; resizing is ours
    "apex": _NATURE | {"full_actions": True, "max_frames": 50_000},
    # Kapturowski et al. 2019, section 2.3 and appendix; resizing is ours
    "r2d2": _NATURE | {"full_actions": True, "life_loss": "ignore"},
    # google/dopamine atari_lib.py; Machado et al. 2018
    "dopamine": _NATURE | {"sticky": 0.25, "noop_max": 0, "life_loss": "ignore"},
}  # fmt: skip


def atari_preset(name: str) -> dict[str, object]:
    """The options of a preset. Raises UserError: there is none of that name."""
    if name not in PRESETS:
        raise UserError(f"--atari: {name!r} given{closest_names(name, PRESETS)}; allowed: auto, {', '.join(PRESETS)}")
    return dict(PRESETS[name])
