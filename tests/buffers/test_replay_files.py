"""A buffer that was saved and loaded draws the same, to the bit, from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyplay.buffers import replay as files
from polyplay.buffers.replay import Proportional, Replay, Uniform
from polyplay.buffers.replay_buffer import ReplayBuffer
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.tree import Field
from tests.buffers.plain_replay import World

SAMPLERS = [Uniform(), Proportional(mixture=0.1), Proportional(stratified=True)]
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
        if buffer.ready:
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
