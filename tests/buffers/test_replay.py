"""The description of a replay: its rate, its files, frames once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyplay.buffers import replay as files
from polyplay.buffers.replay import Proportional, Replay
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.buffers.rollout_queue import row_spec
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from tests.buffers.plain_replay import Plain, World


def limited(ratio: float | None, start: int = 10, lanes: int = 1, batch: int = 4, slack: int = 2):
    world = World(np.random.default_rng(0), lanes, 0, "zeros")
    world.events = ("go",)
    return world, Replay(world.spec(), lanes, 500, batch, ratio=ratio, start=start, slack=slack).open(0)


@settings(max_examples=12, deadline=None)
@given(
    ratio=st.floats(0.05, 40), start=st.integers(1, 60), T=st.integers(1, 20), lanes=st.integers(1, 3),
    slack=st.integers(1, 3)
)  # fmt: skip
def test_one_side_may_always_go_on_and_neither_runs_away(ratio, start, T, lanes, slack):
    world, buffer = limited(ratio, start, lanes, slack=slack)
    for _ in range(50):
        assert buffer.due() or buffer.room
        if buffer.due():
            buffer.sample()
        else:
            buffer.add(world.rows(T, np.arange(lanes)), slice(None))
        if buffer.steps >= start and buffer.size:
            owed = ratio * (buffer.steps - start) - buffer.sampled
            assert owed >= -1e-6
            assert owed <= slack * 4 + ratio * T * lanes + 1e-6


def test_rows_of_a_sequence_count_each():
    world = World(np.random.default_rng(0), 1, 0, "zeros")
    world.events = ("go",)
    buffer = Replay(world.spec(), 1, 500, 2, sequence=8, ratio=1.0, start=20).open(0)
    buffer.add(world.rows(1 + 20 + 3 * 16, np.arange(1)), slice(None))
    assert [buffer.due(n) for n in (3, 4)] == [True, False]
    assert buffer.due(4, coming=16)
    buffer.sample()
    assert [buffer.due(n) for n in (2, 3)] == [True, False]
    assert buffer.metrics()["ratio"] == pytest.approx(1 / 3)


# A buffer that was saved and loaded draws the same, to the bit, from then on.

SAMPLERS = [None, Proportional(mixture=0.1), Proportional(stratified=True)]
STATE = {"h": Field((3,), "float32")}


def description(world: World, **options: Any) -> Replay:
    options = {"stack": 2, "n_step": 2, "ratio": 2.0, "start": 10, **options}
    return Replay(world.spec(), 2, 60, 8, **options)


def play(buffer: ReplayBuffer, world: World, rounds: int, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Add, sample, judge; copies of what was drawn."""
    drawn, lanes = [], np.arange(2)
    for _ in range(rounds):
        state = {"h": rng.normal(size=(2, 3)).astype(np.float32)} if buffer.replay.state else None
        buffer.add(world.rows(6, lanes), lanes, state)
        if buffer.steps >= buffer.replay.start:
            batch = buffer.sample()
            drawn.append({path: np.array(leaf) for path, leaf in tree.leaves(batch)})
            buffer.update_priorities(batch["id"], rng.random(8) * 3)
    return drawn


def same(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]) -> bool:
    return len(a) == len(b) > 0 and all(
        x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("options", [{}, {"sequence": 6, "burn_in": 3, "state": STATE}], ids=str)
def test_what_is_drawn_after_loading_is_the_same_to_the_bit(sampler, options, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 64)  # many pieces
    runs = []
    for loaded in (False, True):
        world, rng = World(np.random.default_rng(1), 2, 2, "any"), np.random.default_rng(2)
        replay = description(world, sampler=sampler, **options)
        buffer = replay.open(7)
        play(buffer, world, 17, rng)
        if loaded:
            buffer.save(tmp_path)
            buffer = replay.open(99)
            buffer.load(tmp_path)
        metrics = buffer.metrics()
        runs.append((play(buffer, world, 20, rng), buffer.metrics(), metrics))
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]
    assert len(list(tmp_path.iterdir())) > 20


def saved(tmp_path: Path) -> tuple[World, Replay]:
    world = World(np.random.default_rng(1), 2, 2, "any")
    buffer = description(world).open(7)
    play(buffer, world, 5, np.random.default_rng(2))
    buffer.save(tmp_path)
    return world, buffer.replay


def test_damage_is_reported(tmp_path: Path):
    _, replay = saved(tmp_path)
    file = next(tmp_path.glob("*rows*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=rf"{file.name} is damaged"):
        replay.open(0).load(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        replay.open(0).load(tmp_path)


def test_another_description_is_refused_by_name(tmp_path: Path):
    world, _ = saved(tmp_path)
    with pytest.raises(UserError, match="n_step=2 there, 3 here"):
        description(world, n_step=3).open(0).load(tmp_path)
    description(world, ratio=4.0).open(0).load(tmp_path)  # of the rate limiter
    head = json.loads((tmp_path / "replay.json").read_text())
    (tmp_path / "replay.json").write_text(json.dumps(head | {"schema": 0}))
    with pytest.raises(UserError, match="schema"):
        description(world).open(0).load(tmp_path)


def test_only_rows_that_there_are_are_written(tmp_path: Path):
    world = World(np.random.default_rng(1), 2, 0, "zeros", (40, 40))
    buffer = Replay(world.spec(), 2, 10_000, 8).open(0)
    buffer.add(world.rows(5, np.arange(2)), slice(None))
    buffer.save(tmp_path)
    assert sum(f.stat().st_size for f in tmp_path.glob("*rows*")) < 10 * 1700 + 10_000


def test_pieces_of_an_earlier_attempt_are_gone(tmp_path: Path, monkeypatch):
    """One that was killed while it wrote is replaced by one that has less to write, in the same place."""
    monkeypatch.setattr(files, "PIECE", 64)
    world, rng = World(np.random.default_rng(1), 2, 2, "any"), np.random.default_rng(2)
    buffer = description(world).open(7)
    play(buffer, world, 6, rng)
    buffer.save(tmp_path)
    many = set(tmp_path.iterdir())
    description(world).open(7).save(tmp_path)
    there = {path.name for path in tmp_path.iterdir()}
    assert len(there) < len(many)
    assert there == {f["name"] for f in json.loads((tmp_path / files.INDEX).read_text())["files"]} | {files.INDEX}


# Frames once: buffer per transition by arithmetic and by pages touched; trees of observations.

POLICY = {"action": Field((), "int64"), "value": Field((), "float32"), "chosen": Field((), "float32")}
ATARI = row_spec(Field((4, 84, 84), "uint8"), POLICY)
LIMIT = 7200  # bytes of a transition at a million, everything included


def atari(capacity: int, batch: int = 32) -> Replay:
    return Replay(ATARI, 8, capacity, batch, stack=4, n_step=3, sampler=Proportional())


def test_a_million_transitions_by_arithmetic():
    assert 7056e6 < atari(1_000_000).bytes() < LIMIT * 1_000_000
    small = atari(3_000)
    for own in (True, False):
        assert small.bytes(own) == pytest.approx(small.open(0, own).nbytes, rel=0.002)  # as much is allocated


def test_a_tree_of_observations_some_of_them_stacks():
    rng = np.random.default_rng(0)
    world = World(rng, 2, 3, "any", (5, 3))
    spec = world.spec()
    spec["obs"] = {"screen": Field((3, 5, 3), "uint8"), "deep": {"x": Field((7,), "float64")}}
    replay = Replay(spec, 2, 50, 16, stack=3, n_step=2)
    buffer, plain = replay.open(1), Plain(replay)
    by_action = {}
    for _ in range(9):
        rows = world.rows(9, np.arange(2))
        plain.add(rows, np.arange(2))
        extra = rng.normal(size=(9, 2, 7))
        by_action.update(zip(rows["action"].reshape(-1).tolist(), extra.reshape(-1, 7), strict=True))
        buffer.add(rows | {"obs": {"screen": rows["obs"], "deep": {"x": extra}}}, slice(None))
    batch, items = buffer.sample(), plain.items()
    for i, number in enumerate(batch["id"].tolist()):
        assert np.array_equal(batch["obs"]["screen"][:, i], items[number]["obs"])
        assert np.array_equal(batch["obs"]["deep"]["x"][0, i], by_action[int(batch["action"][i])])
