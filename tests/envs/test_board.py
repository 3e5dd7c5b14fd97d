from __future__ import annotations

import numpy as np

from polyplay.core.tree import Field
from polyplay.envs import EnvSpec
from polyplay.envs.board import BROKEN, FAILED, FLAGS, NOTE, SharedRows
from polyplay.envs.spaces import Box, Discrete, MultiBinary, MultiDiscrete

BOX = Box((2,), np.zeros(2, np.float32), np.ones(2, np.float32))


def test_shapes_follow_the_spec():
    spec = EnvSpec({"a": Field((3,), "uint8"), "b": {"c": Field((), "int64")}}, BOX)
    board = SharedRows(spec, 4, 2)
    assert board.rows["obs"]["a"].shape == (4, 3)
    assert board.rows["obs"]["b"]["c"].dtype == np.int64
    assert board.rows["reward"].dtype == np.float32
    assert all(board.rows[flag].dtype == bool for flag in FLAGS)
    assert board.action.shape == (4, 2)
    assert board.deadline.shape == (2,)
    assert SharedRows(EnvSpec(Field((1,), "float32"), Discrete(3)), 4, 2).action.dtype == np.int64
    assert "mask" not in board.rows


def test_actions_and_masks_are_trees_where_the_spec_has_trees():
    action = {"a": MultiDiscrete((2, 1), (2, 3)), "b": {"c": MultiBinary((3,)), "d": BOX}}
    mask = {"a": Field((5,), "bool")}
    board = SharedRows(EnvSpec(Field((1,), "float32"), action, mask=mask), 4, 1)
    assert (board.action["a"].shape, board.action["a"].dtype) == ((4, 2, 1), np.int64)
    assert (board.action["b"]["c"].shape, board.action["b"]["c"].dtype) == ((4, 3), np.int8)
    assert board.action["b"]["d"].shape == (4, 2)
    assert (board.rows["mask"]["a"].shape, board.rows["mask"]["a"].dtype) == ((4, 5), bool)


def test_notes_are_cut_to_their_place():
    board = SharedRows(EnvSpec(Field((1,), "float32"), Discrete(3)), 2, 1)
    board.note(0, BROKEN, "ä" * NOTE)
    kind, text = board.read(0)
    assert kind == BROKEN
    assert 0 < len(text) < NOTE
    board.note(0, FAILED, "short")
    assert board.read(0) == (FAILED, "short")
