"""Start states of Atari games: the file that people supply for the human-starts protocol. JSON, nothing pickled.

    {"format": "polyplay-starts", "version": 1, "game": "pong", "kind": "human", "source": "who played, when, how",
     "starts": [{"actions": ["NOOP*12", "FIRE", "RIGHT*4"], "seed": 0, "ram": "sha256 of the RAM there"},
                {"state": "base64 of ALEState.serialize()", "frames": 5120}]}

A start is what was pressed from the game's reset on (ALE's names of buttons; "RIGHT*4": for four frames), or a saved
state of the emulator with the frames that were played before it. "seed" (default 0) is the emulator's `random_seed`,
"ram", where given, must be reproduced. "kind": "human", or "substitute" for anything else, which labels every score.
The papers' own start states were never released. Imports no torch.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from polyplay.common.errors import UserError

FORMAT, VERSION = "polyplay-starts", 1
KINDS = ("human", "substitute")


@dataclass(frozen=True)
class Start:
    """presses: (button, frames it is held) from a reset on; frames: played before the agent takes over."""

    presses: tuple[tuple[int, int], ...]
    frames: int
    seed: int = 0
    ram: str = ""  # SHA-256 of the RAM after the presses; "": not checked
    state: bytes = b""  # of the emulator, instead of presses


@dataclass(frozen=True)
class Starts:
    path: str
    game: str
    kind: str
    source: str
    starts: tuple[Start, ...]
    digest: str  # SHA-256 of the file


def load_starts(path: str, game: str = "") -> Starts:
    """Read a file of start states; `game`: the ROM's name that it has to be of. Raises UserError on one line."""
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise UserError(f"--starts: cannot read {path}: {e.strerror}; give a file of start states") from None
    found = _parse(path, data)
    if game and found.game != game:
        raise UserError(f"--starts: {path} has start states of {found.game}, the run plays {game}")
    return found


@lru_cache(maxsize=4)
def _parse(path: str, data: bytes) -> Starts:
    try:
        content = json.loads(data)
    except ValueError as e:
        raise UserError(f"--starts: {path} is no JSON: {e}") from None
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise UserError(f'--starts: {path} must be an object with "format": "{FORMAT}" and "version": {VERSION}')
    if content.get("kind") not in KINDS:
        raise UserError(f'--starts: {path}: "kind" is {content.get("kind")!r}, allowed: {", ".join(KINDS)}')
    for name in ("game", "source"):
        if not isinstance(content.get(name), str) or not content[name]:
            raise UserError(f'--starts: {path}: "{name}" is {content.get(name)!r}, it must be text')
    rows = content.get("starts")
    if not isinstance(rows, list) or not rows:
        raise UserError(f'--starts: {path}: "starts" must be a list of at least one start')
    starts = tuple(_start(row, f"--starts: {path}, start {i}") for i, row in enumerate(rows))
    return Starts(path, content["game"], content["kind"], content["source"], starts, hashlib.sha256(data).hexdigest())


def _start(row: object, where: str) -> Start:
    if not isinstance(row, dict) or ("actions" in row) == ("state" in row):
        raise UserError(f'{where}: has to be an object with either "actions" or "state"')
    seed, ram = row.get("seed", 0), row.get("ram", "")
    if not _whole(seed) or not isinstance(ram, str):
        raise UserError(f'{where}: "seed" must be a whole number from 0 up and "ram" a SHA-256, in hexadecimal')
    if "actions" in row:
        words = row["actions"]
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
            raise UserError(f'{where}: "actions" must be a list of words such as "RIGHT*4"')
        presses = tuple(_press(word, where) for word in words)
        return Start(presses, sum(n for _, n in presses), seed, ram)
    if not _whole(row.get("frames")):
        raise UserError(f'{where}: a "state" needs "frames", how many frames were played before it')
    try:
        state = base64.b64decode(row["state"], validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise UserError(f'{where}: "state" is no base64') from None
    return Start((), row["frames"], seed, ram, state)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _press(word: str, where: str) -> tuple[int, int]:
    import ale_py

    button, _, frames = word.partition("*")
    known = ale_py.Action.__members__
    if button not in known or not (frames or "1").isdigit():
        raise UserError(f"{where}: {word!r} is no button of ALE's with a number of frames, such as RIGHT*4")
    return known[button].value, int(frames or 1)


def spelled(buttons: list[str]) -> list[str]:
    """Buttons frame by frame as the words of a file: ["NOOP", "NOOP", "FIRE"] → ["NOOP*2", "FIRE"]."""
    runs = [(button, len(list(same))) for button, same in groupby(buttons)]
    return [button if n == 1 else f"{button}*{n}" for button, n in runs]


def written(game: str, kind: str, source: str, starts: Sequence[Mapping[str, object]]) -> bytes:
    """The bytes of such a file."""
    head = {"format": FORMAT, "version": VERSION, "game": game, "kind": kind, "source": source}
    rows = ",\n  ".join(json.dumps(start) for start in starts)
    return (json.dumps(head)[:-1] + f', "starts": [\n  {rows}\n]}}\n').encode()
