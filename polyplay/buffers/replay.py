"""Options of a replay (memory of past experience, from which batches are drawn), and functions that save its buffer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as unpacked
from safetensors.numpy import save as packed

from polyplay.buffers.rollout_queue import PolicyLike, rows_of
from polyplay.core import checkpoint, tree
from polyplay.core.errors import UserError
from polyplay.core.files import write_bytes
from polyplay.core.tree import Field, Spec
from polyplay.envs.atari import plays_games
from polyplay.envs.pool import Envs

if TYPE_CHECKING:
    from polyplay.buffers.replay_buffer import ReplayBuffer

FLAGS = ("first", "terminated", "truncated")  # flags of a row: stored as bits of one byte
BOTH = ("obs", "mask")  # fields that a batch has for both ends of a transition
REWARDS = ("none", "clip", "sign")
ALPHA, BETA = 0.75, 0.4  # constants of a growing window, see Replay.limit
HEADROOM = 8  # a soft replay has room for 1/HEADROOM more than its capacity


class Proportional(NamedTuple):
    """Options of prioritized replay (Schaul et al. 2016). An item with priority p is drawn with probability P = p^α / Σ
    p^α, where 0^α is 0 for every α. Its importance weight is (N·P)^-β, divided by the largest weight in the batch.

    `first`: initial priority of an item. "max": the largest priority so far. "td": the TD error that follows from the
        outputs of the acting policy (Ape-X). For a sequence, it is η·max + (1 - η)·mean of the TD errors (R2D2).
    `rescale`: ε of the loss's value rescaling, or 0 for no rescaling.
    `mixture`: u. With u > 0, items are drawn with probability (1 - u)·P + u/N.
    """

    alpha: float = 0.6
    beta: float = 0.4
    mixture: float = 0.0
    stratified: bool = False
    first: str = "max"
    eta: float = 0.9
    rescale: float = 0.0
    beta_end: float | None = None  # β at the end of the run, reached linearly; None: β is constant


@dataclass(frozen=True)
class Replay:
    """Options of a replay buffer, from which batches of past experience are drawn. The buffer holds the last `capacity`
    transitions of `lanes` parallel environments.

    A batch consists of items. By default, an item is a transition of `n_step` steps. If `sequence` is not 0, an item
    has `burn_in` rows, then `sequence` rows to train on, then `n_step` further rows. No item spans two episodes.
    """

    # fields of a stored row: obs, action, reward, first, terminated, truncated, version, … (rollout_queue.row_spec)
    spec: Spec
    lanes: int
    capacity: int  # transitions, split evenly over the lanes
    batch: int  # items per batch
    state: Spec = field(default_factory=dict)  # fields of the recurrent state; {}: no recurrent state
    sampler: Proportional | None = None  # None: all items are equally probable
    n_step: int = 1
    gamma: float = 0.99  # discount per agent step
    reward: str = "none"  # change of rewards before summing: "clip" limits them to ±1, "sign" keeps only the sign
    scale: float = 1.0  # factor of the summed rewards
    start: int = 1  # agent steps before the first batch is drawn
    ratio: float | None = None  # rows trained on per agent step after `start`; None: unlimited
    slack: int = 2  # batches by which drawing may lag behind `ratio`
    stack: int = 0  # planes in a stacked observation, of which only the newest is stored; 0: all are stored
    sequence: int = 0
    burn_in: int = 0
    period: int = 0  # rows between the starts of sequences; 0: half of `sequence`
    soft: bool = False  # whether the replay may exceed `capacity` until trim() is called
    grows_from: int = 0  # number of items from which a growing window starts, see `limit`; 0: keep `capacity`
    buffers: int = 2  # number of drawn batches whose arrays are valid at the same time

    @classmethod
    def of(cls, envs: Envs, network: PolicyLike, sampler: Proportional | None = None, **options: Any) -> Replay:
        """Return the options of a replay for these environments and this network. Of a stack of images, each row stores
        only the newest plane. `options`: further fields of Replay, such as `capacity`. By default, `lanes` is
        `envs.lanes`.
        """
        spec = envs.spec
        left = {"agent"} if sampler and sampler.first == "td" else {"agent", "value", "chosen"}
        stacked = plays_games(envs) and isinstance(spec.obs, Field) and spec.obs.shape[0] > 1
        stack = spec.obs.shape[0] if stacked else 0
        rows = {k: v for k, v in rows_of(spec, network.spec()).items() if k not in left}
        given = {"lanes": envs.lanes, "state": network.state_spec(), "stack": stack, **options}
        return cls(rows, sampler=sampler, **given)

    def __post_init__(self) -> None:
        _check_limits(self, LIMITS)
        _refuse(self.reward not in REWARDS, f"reward={self.reward!r}: must be one of {', '.join(REWARDS)}")
        _refuse(not 0 < self.scale < inf, f"scale={self.scale} of rewards: must be above 0")
        wrong = self.ratio is not None and not 0 < self.ratio < inf
        _refuse(wrong, f"ratio={self.ratio}: must be above 0, or none to sample freely")
        text = f"start={self.start} is more than capacity={self.capacity}: learning would never start"
        _refuse(self.start > self.capacity, text)
        text = f"capacity={self.capacity} is less than one transition for each of {self.lanes} lanes"
        _refuse(self.capacity < self.lanes, text)
        text = f"burn_in={self.burn_in} needs sequence, the rows after it to train on"
        _refuse(self.burn_in and not self.sequence, text)
        if self.sampler is not None:
            _check_limits(self.sampler, dict.fromkeys(("alpha", "beta", "mixture", "eta"), (0, 1)))
            first, unknown = self.sampler.first, not {"value", "chosen"} <= self.spec.keys()
            _refuse(first not in ("max", "td"), f"first={first!r}: must be max or td")
            _refuse(first == "td" and unknown, "first='td' needs value and chosen in the stored rows")
        missing = sorted({"obs", "action", "reward", *FLAGS} - self.spec.keys())
        _refuse(bool(missing), f"the stored rows lack {', '.join(missing)}")
        leaves = [(p, f) for p, f in tree.leaves(self.spec) if p.split("/")[0] == "obs"]
        shapes = ", ".join(f"{p} {f.shape}" for p, f in leaves)
        text = f"stack={self.stack}: no observation starts with that many planes ({shapes}); try stack=0"
        _refuse(self.stack and not any(self.stacked(p, f) for p, f in leaves), text)

    @property
    def items(self) -> str:
        """Text that describes the items (transitions or sequences) of a batch."""
        what = f"sequences of {self.sequence} after {self.burn_in}" if self.sequence else "transitions"
        return f"{self.batch} {what}{f' of {self.n_step} steps' if self.n_step > 1 else ''}"

    def limit(self, inserted: int) -> int:
        """Return the largest number of items to hold after N = `inserted` insertions. It is `capacity`, or the size of
        a growing window if that is smaller. A window that grows from c = `grows_from` items has c (1 + 0.4 ((N /
        c)^0.75 - 1) / 0.75) items (KataGo: Wu 2019, appendix C, with c = 250,000).
        """
        c = self.grows_from
        grown = c * (1 + BETA * ((inserted / c) ** ALPHA - 1) / ALPHA) if 0 < c < inserted else inf
        return int(min(self.capacity, grown))

    def describe(self) -> list[str]:
        """Return two lines of text for the printed plan: one about the stored rows, one about the draws."""
        pace = "free" if self.ratio is None else f"{self.ratio:g} per agent step"
        drawn = f"{self.items}: {pace}, {'uniform' if self.sampler is None else 'proportional'}"
        return [f"replay  {self.capacity:,} agent steps{', soft' * self.soft}", f"draws   {drawn}"]

    @property
    def every(self) -> int:
        """Number of rows between the starts of two sequences, or 0 if items are transitions."""
        return self.sequence and (self.period or max(1, self.sequence // 2))

    @property
    def window(self) -> int:
        """Number of rows that an item needs after its first trained row."""
        return self.sequence + self.n_step - 1 if self.sequence else self.n_step

    @property
    def length(self) -> int:
        """Number of rows of a sequence, including burn-in and the n_step rows at the end."""
        return self.burn_in + self.sequence + self.n_step

    @property
    def rows(self) -> int:
        """Number of rows (steps) in the ring buffer of each lane (parallel environment)."""
        own = -(-self.capacity // self.lanes)
        own += -(-own // HEADROOM) if self.soft else 0
        return own + self.window + self.burn_in + max(self.stack, 1) - 1

    @property
    def anchors(self) -> int:
        """Number of recurrent states that are stored for each lane."""
        return self.rows // self.every + 2 if self.sequence and self.state else 0

    def stacked(self, path: str, leaf: Field) -> bool:
        """Tell whether the field at `path` is a stack of image planes."""
        inside = path == "obs" or path.startswith("obs/")
        return bool(self.stack) and inside and len(leaf.shape) > 1 and leaf.shape[0] == self.stack

    def bytes(self, batches: bool = True) -> int:
        """Return the memory of a full replay in bytes. `batches`: whether to count the arrays for drawn batches."""
        slots, total = self.lanes * self.rows, 0
        for path, leaf in tree.leaves(self.spec):
            stacked = self.stacked(path, leaf)
            total += 0 if path in FLAGS else slots * leaf.nbytes // (self.stack if stacked else 1)
            total += self.lanes * leaf.nbytes * stacked
        total += slots * (2 + 8 + 8) + self.lanes * self.anchors * tree.nbytes(self.state)
        total += slots * 10 * (self.sampler is not None)
        return total + (self.buffers * tree.nbytes(self.drawn()) if batches else 0)

    def drawn(self) -> Spec:
        """Return the fields of a batch, with their full shapes. See docs/concepts/replay.md."""
        B = self.batch
        if self.sequence:
            rows = tree.widen(self.spec, (self.length, B))
            extras = {"state": tree.widen(self.state, (B,)), "valid": Field((self.length, B), "bool")}
        else:
            kept = {k: v for k, v in self.spec.items() if k not in ("reward", *FLAGS)}
            rows = {k: tree.widen(v, (2, B) if k in BOTH else (B,)) for k, v in kept.items()}
            extras = {"first": Field((2, B), "bool")} | dict.fromkeys(("return", "discount"), Field((B,), "float32"))
        return {**rows, **extras, "weight": Field((B,), "float32"), "id": Field((B,), "int64")}

    def open(self, seed: int, batches: bool = True) -> ReplayBuffer:
        """Return an empty replay buffer, for use in one thread. `seed` determines all draws. With batches=False, the
        buffer has no arrays for drawn batches, and each call of `sample` must pass arrays as `into`.
        """
        from polyplay.buffers.replay_buffer import ReplayBuffer

        return ReplayBuffer(self, seed, batches)


LIMITS = {
    **dict.fromkeys(("lanes", "capacity", "batch", "n_step", "start", "slack", "buffers"), (1, inf)),
    **dict.fromkeys(("sequence", "burn_in", "period"), (0, inf)),
    **{"gamma": (0, 1), "stack": (0, 127), "grows_from": (0, inf)},
}


def _refuse(wrong: bool | int, text: str) -> None:
    if wrong:
        raise UserError(f"replay: {text}")


def _check_limits(owner: Replay | Proportional, limits: Mapping[str, tuple[float, float]]) -> None:
    for name, (least, most) in limits.items():
        value, allowed = getattr(owner, name), f"{least} or more" if most == inf else f"{least} to {most}"
        _refuse(not least <= value <= most, f"{name}={value}: must be {allowed}")


# A saved replay buffer: safetensors files of at most 64 MB with checksums, and replay.json. Saving needs no second copy
# in RAM.
#
# Only slots that hold rows are written. Of a sum tree, only the leaves are saved, which determine all sums exactly.


SCHEMA = 4
INDEX = "replay.json"
PIECE = 64 * 2**20  # bytes to save or load at a time
# fields in which a replay may differ from the saved replay that it loads: no saved data depend on these fields
FREE_SPACE = ("batch", "gamma", "reward", "scale", "start", "ratio", "slack", "buffers")


def save_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Write the state of a replay buffer, with its random generator, into `directory`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob("*.safetensors"):  # from a process that was killed while writing
        left.unlink()
    files = []
    for i, (part, key, begin, rows) in enumerate(_pieces(buffer)):
        data = packed({"rows": np.ascontiguousarray(rows), "at": np.array([begin])})
        name = f"{i:05d}-{part}.safetensors"
        write_bytes(directory / name, data)
        files.append({"name": name, "part": part, "key": key, "crc32": zlib.crc32(data)})
        del data
    numbers = {"rng": buffer.rng.tolist(), "steps": buffer.steps}
    numbers |= {"max_priority": buffer.max_priority, "first_priority": buffer.first_priority, "beta": buffer.beta}
    head = {"schema": SCHEMA, "replay": _description(buffer.replay), "numbers": numbers, "files": files}
    checkpoint.write_json(directory / INDEX, head)


def load_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Restore the state that `save_buffer` wrote. Raises UserError if files are damaged, or if the saved replay has
    another `layout`.
    """
    head, parts = _head(directory, (buffer.replay,)), _parts(buffer)
    for file in head["files"]:
        piece = _read(directory / file["name"], file["crc32"])
        begin, rows = int(piece["at"][0]), piece["rows"]
        parts[file["part"]][file["key"]][begin : begin + len(rows)] = rows
    if buffer.replay.sampler is not None:
        buffer.tree.load(buffer.tree.leaves.copy())
    numbers = head["numbers"]
    buffer.rng[:] = np.array(numbers["rng"], np.uint64)
    buffer.steps = numbers["steps"]
    buffer.max_priority, buffer.first_priority = numbers["max_priority"], numbers["first_priority"]
    buffer.beta = numbers["beta"]


def check_saved(root: Path, replays: Sequence[Replay]) -> None:
    """Raise UserError if a checkpoint has a replay that none of `replays` can load."""
    for index in sorted(root.glob(f"replay/*/{INDEX}")):
        _head(index.parent, replays)


def _head(directory: Path, replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the content of a saved replay's replay.json. Raises UserError if none of `replays` can load the replay."""
    try:
        head = json.loads((directory / INDEX).read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"replay: {INDEX} cannot be read ({e})") from None
    if head.get("schema") != SCHEMA:
        raise UserError(
            f"replay: its schema is {head.get('schema')!r}, this version reads {SCHEMA}; use the version that wrote it"
        )
    saved, own = head["replay"], [layout(replay) for replay in replays]
    differ = [[f"{k}={saved.get(k)} there, {v} here" for k, v in one.items() if saved.get(k) != v] for one in own]
    if fewest := min(differ, key=len, default=[]):
        raise UserError(f"replay: the saved replay has another description: {', '.join(fewest)}")
    return head


def _read(path: Path, checksum: int) -> dict[str, np.ndarray]:
    try:
        data = path.read_bytes()
        if zlib.crc32(data) != checksum:
            raise UserError(f"replay: {path.name} is damaged (its checksum differs)")
        return unpacked(data)
    except (OSError, SafetensorError) as e:
        raise UserError(f"replay: {path.name} cannot be read ({e})") from None


def _description(replay: Replay) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(replay)))


def layout(replay: Replay) -> dict[str, Any]:
    """Return the options that must be equal if one replay is to load the saved files of another."""
    return {k: v for k, v in _description(replay).items() if k not in FREE_SPACE}


def _parts(buffer: ReplayBuffer) -> dict[str, dict[str, np.ndarray]]:
    return {
        "index": buffer.index._asdict(),
        "last": buffer.columns.last,
        "states": buffer.states.arrays,
        "sampler": {"leaves": buffer.tree.leaves},
        "rows": buffer.columns.arrays,
    }


def _pieces(buffer: ReplayBuffer) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Yield (part, key, first row, rows) for each file to write."""
    R, heads = buffer.replay.rows, buffer.index.lane[0].tolist()
    used = [(lane * R, lane * R + min(head, R)) for lane, head in enumerate(heads)]  # slots that hold rows
    for part, arrays in _parts(buffer).items():
        for key, array in arrays.items():
            step = max(1, PIECE // max(1, array[:1].nbytes))
            for begin, end in used if part == "rows" else [(0, len(array))]:
                for at in range(begin, end, step):
                    yield part, key, at, array[at : min(at + step, end)]
