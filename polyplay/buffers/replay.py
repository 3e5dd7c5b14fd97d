"""The description of a replay: plain values, checked, that become a ReplayBuffer in the worker that has it."""

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

FLAGS = ("first", "terminated", "truncated")  # of a row: stored as bits of one byte
BOTH = ("obs", "mask")  # of both ends of a transition
REWARDS = ("none", "clip", "sign")
ALPHA, BETA = 0.75, 0.4  # of a window that grows
HEADROOM = 8  # a soft capacity has room for an eighth more


class Proportional(NamedTuple):
    """P = p^α / Σ p^α, weights (N·P)^-β over their maximum in the batch (Schaul et al. 2016; 0^α = 0 for every α).

    first: an item's first priority: "max", the greatest ever given; "td", |G + D·value - chosen| by the outputs of the
    policy that acted (Ape-X), of a sequence η·max + (1 - η)·mean of its rows' (R2D2), with the ε of value rescaling
    that its loss has (0: none). mixture u: drawn from (1 - u)·P + u/N.
    """

    alpha: float = 0.6
    beta: float = 0.4
    mixture: float = 0.0
    stratified: bool = False
    first: str = "max"
    eta: float = 0.9
    rescale: float = 0.0
    beta_end: float | None = None  # β at the end of the run, moved there by the learner; None: constant


@dataclass(frozen=True)
class Replay:
    """The last `capacity` transitions of all `lanes` that feed one buffer, and how batches are drawn from it.

    An item is a transition of `n_step` steps, or with `sequence` m > 0 that many rows to train on, `burn_in` before
    them and n_step behind. Every item belongs to one episode.
    """

    # of a stored row: obs, action, reward, first, terminated, truncated, version, … (rollout_slots.row_spec)
    spec: Spec
    lanes: int
    capacity: int  # transitions, split evenly over the lanes
    batch: int  # items drawn at once
    state: Spec = field(default_factory=dict)  # of the recurrent state; {} if none
    sampler: Proportional | None = None  # None: every item with the same chance
    n_step: int = 1
    gamma: float = 0.99  # per agent step
    reward: str = "none"  # before it is summed: "clip" limits it to ±1, "sign" leaves its sign
    scale: float = 1.0  # multiplies the sum
    start: int = 1  # agent steps before the first sample
    ratio: float | None = None  # rows learnt from for each agent step after the start; None: free
    slack: int = 2  # batches by which sampling may be behind that
    stack: int = 0  # planes of stacked observations, of which only the newest is stored; 0: all are
    sequence: int = 0
    burn_in: int = 0
    period: int = 0  # rows between the starts of sequences; 0: half of `sequence`
    soft: bool = False  # more than `capacity` is stored until trim()
    grows_from: int = 0  # items from which on only the newest are kept, see `limit`; 0: up to `capacity`
    buffers: int = 2  # batches whose arrays are good at a time

    @classmethod
    def of(cls, envs: Envs, network: PolicyLike, sampler: Proportional | None = None, **options: Any) -> Replay:
        """Describe a replay of the rows of such environments and this network; `lanes` is `envs.lanes` if options has
        no other. Of stacked images only the newest plane is stored. The network's values are stored where first
        priorities are made of them. options: the other fields.
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
        _refuse(self.reward not in REWARDS, f"reward={self.reward!r} given, allowed: {', '.join(REWARDS)}")
        _refuse(not 0 < self.scale < inf, f"scale={self.scale} of rewards given, allowed: above 0")
        wrong = self.ratio is not None and not 0 < self.ratio < inf
        _refuse(wrong, f"ratio={self.ratio} given, allowed: above 0, or none to sample freely")
        text = f"start={self.start} is more than capacity={self.capacity}: it would never begin"
        _refuse(self.start > self.capacity, text)
        text = f"capacity={self.capacity} is less than one transition for each of {self.lanes} lanes"
        _refuse(self.capacity < self.lanes, text)
        text = f"burn_in={self.burn_in} needs sequence, the rows that are trained on behind it"
        _refuse(self.burn_in and not self.sequence, text)
        if self.sampler is not None:
            _check_limits(self.sampler, dict.fromkeys(("alpha", "beta", "mixture", "eta"), (0, 1)))
            first, unknown = self.sampler.first, not {"value", "chosen"} <= self.spec.keys()
            _refuse(first not in ("max", "td"), f"first={first!r} given, allowed: max, td")
            _refuse(first == "td" and unknown, "first='td' needs value and chosen in the stored rows")
        missing = sorted({"obs", "action", "reward", *FLAGS} - self.spec.keys())
        _refuse(bool(missing), f"the stored rows lack {', '.join(missing)}")
        leaves = [(p, f) for p, f in tree.leaves(self.spec) if p.split("/")[0] == "obs"]
        shapes = ", ".join(f"{p} {f.shape}" for p, f in leaves)
        text = f"stack={self.stack} given, no observation has so many planes in front ({shapes}); 0?"
        _refuse(self.stack and not any(self.stacked(p, f) for p, f in leaves), text)

    @property
    def items(self) -> str:
        """What a batch is, for people."""
        what = f"sequences of {self.sequence} after {self.burn_in}" if self.sequence else "transitions"
        return f"{self.batch} {what}{f' of {self.n_step} steps' if self.n_step > 1 else ''}"

    def limit(self, inserted: int) -> int:
        """Items that may be drawn once N were inserted: the capacity at most, and where the window grows from c on,
        c (1 + 0.4 ((N / c)^0.75 - 1) / 0.75) (KataGo: Wu 2019, appendix C, which has c = 250,000).
        """
        c = self.grows_from
        grown = c * (1 + BETA * ((inserted / c) ** ALPHA - 1) / ALPHA) if 0 < c < inserted else inf
        return int(min(self.capacity, grown))

    def describe(self) -> list[str]:
        """What it holds and what is drawn from it, a line each."""
        pace = "free" if self.ratio is None else f"{self.ratio:g} per agent step"
        drawn = f"{self.items}: {pace}, {'uniform' if self.sampler is None else 'proportional'}"
        return [f"replay  {self.capacity:,} agent steps{', soft' * self.soft}", f"draws   {drawn}"]

    @property
    def every(self) -> int:
        """Rows between the starts of sequences; 0: items are transitions."""
        return self.sequence and (self.period or max(1, self.sequence // 2))

    @property
    def window(self) -> int:
        """Rows behind an item's first (of those trained on) that must be there."""
        return self.sequence + self.n_step - 1 if self.sequence else self.n_step

    @property
    def length(self) -> int:
        """Rows of a sequence."""
        return self.burn_in + self.sequence + self.n_step

    @property
    def rows(self) -> int:
        """Rows in each lane's ring."""
        own = -(-self.capacity // self.lanes)
        own += -(-own // HEADROOM) if self.soft else 0
        return own + self.window + self.burn_in + max(self.stack, 1) - 1

    @property
    def anchors(self) -> int:
        """Recurrent states that are stored of each lane."""
        return self.rows // self.every + 2 if self.sequence and self.state else 0

    def stacked(self, path: str, leaf: Field) -> bool:
        """Whether a leaf of the spec is a stack of planes."""
        inside = path == "obs" or path.startswith("obs/")
        return bool(self.stack) and inside and len(leaf.shape) > 1 and leaf.shape[0] == self.stack

    def bytes(self, batches: bool = True) -> int:
        """RAM once it is full; batches: with its own arrays for these."""
        slots, total = self.lanes * self.rows, 0
        for path, leaf in tree.leaves(self.spec):
            stacked = self.stacked(path, leaf)
            total += 0 if path in FLAGS else slots * leaf.nbytes // (self.stack if stacked else 1)
            total += self.lanes * leaf.nbytes * stacked
        total += slots * (2 + 8 + 8) + self.lanes * self.anchors * tree.nbytes(self.state)
        total += slots * 10 * (self.sampler is not None)
        return total + (self.buffers * tree.nbytes(self.drawn()) if batches else 0)

    def drawn(self) -> Spec:
        """What a batch has: see docs/concepts/replay.md. Shapes are whole ones, [B] and all."""
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
        """The buffer, empty, for one thread. `seed` decides what is drawn. batches: with its own arrays for these; else
        it only draws into others'.
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
        _refuse(not least <= value <= most, f"{name}={value} given, allowed: {allowed}")


# A replay buffer as files: pieces of at most 64 MB as safetensors, each with a checksum, and replay.json. Never twice
# in RAM.
#
# Only slots that hold rows are written. A tree is saved by its leaves, since its sums follow from them to the bit.


SCHEMA = 4
INDEX = "replay.json"
PIECE = 64 * 2**20  # bytes that are saved or loaded at once
# of a description, what may differ: nothing that is saved depends on it
FREE_SPACE = ("batch", "gamma", "reward", "scale", "start", "ratio", "slack", "buffers")


def save_buffer(buffer: ReplayBuffer, directory: Path) -> None:
    """Write all that decides what is drawn from now on into `directory`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob("*.safetensors"):  # by a process that was killed while it wrote
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
    """Restore what was saved, to the bit. Raises UserError: damaged files, or another description."""
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
    """Whether what a checkpoint has of replays can be loaded into such ones. Raises UserError."""
    for index in sorted(root.glob(f"replay/*/{INDEX}")):
        _head(index.parent, replays)


def _head(directory: Path, replays: Sequence[Replay]) -> dict[str, Any]:
    """What was saved, of one of these replays."""
    try:
        head = json.loads((directory / INDEX).read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"replay: {INDEX} cannot be read ({e})") from None
    if head.get("schema") != SCHEMA:
        raise UserError(
            f"replay: its schema is {head.get('schema')!r}, this version reads {SCHEMA}: use the one that wrote it"
        )
    saved, own = head["replay"], [layout(replay) for replay in replays]
    differ = [[f"{k}={saved.get(k)} there, {v} here" for k, v in one.items() if saved.get(k) != v] for one in own]
    if fewest := min(differ, key=len, default=[]):
        raise UserError(f"replay: what was saved was described otherwise: {', '.join(fewest)}")
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
    """As JSON has it."""
    return json.loads(json.dumps(asdict(replay)))


def layout(replay: Replay) -> dict[str, Any]:
    """What two replays must have in common, so that one can load what the other saved."""
    return {k: v for k, v in _description(replay).items() if k not in FREE_SPACE}


def _parts(buffer: ReplayBuffer) -> dict[str, dict[str, np.ndarray]]:
    """All arrays that are saved; they are the buffer's own, to be filled in place."""
    return {
        "index": buffer.index._asdict(),
        "last": buffer.columns.last,
        "states": buffer.states.arrays,
        "sampler": {"leaves": buffer.tree.leaves},
        "rows": buffer.columns.arrays,
    }


def _pieces(buffer: ReplayBuffer) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Part, key, first row, and the rows of each file."""
    R, heads = buffer.replay.rows, buffer.index.lane[0].tolist()
    used = [(lane * R, lane * R + min(head, R)) for lane, head in enumerate(heads)]  # slots that hold rows
    for part, arrays in _parts(buffer).items():
        for key, array in arrays.items():
            step = max(1, PIECE // max(1, array[:1].nbytes))
            for begin, end in used if part == "rows" else [(0, len(array))]:
                for at in range(begin, end, step):
                    yield part, key, at, array[at : min(at + step, end)]
