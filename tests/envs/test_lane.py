from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from polyplay.core.errors import UserError
from polyplay.envs import build
from polyplay.envs.board import BROKEN, FAILED, FLAGS, ROUNDED, UNBUILT, SharedRows
from polyplay.envs.lane import START, Lane, LaneJob, take_turn, unit_seed
from polyplay.envs.pool import lane_seeds
from tests.envs import faulty
from tests.envs.faulty import EXIT, FINE, RAISE, SHAPE


def lane(make, lanes=1):
    spec = build.describe(faulty.Obedient, {})
    board = SharedRows(spec, lanes, 1)
    job = LaneJob(b"", "Game", spec, seed=1, lane=5, step_timeout=1.5)
    allowed: list = []
    return Lane(job, make, board, 0, allowed.append), board, allowed


def turn(one, board, action=FINE):
    board.action[0] = action
    return take_turn(one)


def test_an_environment_process_is_small_and_has_no_torch():
    code = (
        "import polyplay.envs.process_pool, polyplay.envs.make, polyplay.envs.process_pool, json, sys;"
        "import psutil;"
        "print(json.dumps([psutil.Process().memory_info().rss / 2**20, 'torch' in sys.modules]))"
    )
    megabytes, torch = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    assert megabytes < 60
    assert not torch


def test_turns_reset_step_and_reset_again():
    one, board, allowed = lane(lambda: faulty.Obedient(length=2))
    seen = []
    for _ in range(4):
        assert turn(one, board) == 0
        rows = board.rows
        seen.append([int(rows["obs"][0, 0]), int(rows["reward"][0]), *(bool(rows[k][0]) for k in FLAGS)])
    assert seen == [
        [0, 0, False, False, True, False],
        [1, 1, False, False, False, False],
        [2, 2, True, False, False, True],
        [0, 0, False, False, True, False],
    ]
    assert allowed == [START, 1.5, 1.5, 1.5, 1.5], "building has a time limit of its own"


def test_a_fault_leaves_a_note_and_the_next_turn_a_first_row():
    one, board, _ = lane(lambda: faulty.Obedient(length=9))
    turn(one, board)
    env = one.env
    assert turn(one, board, RAISE) == ~0
    kind, text = board.read(0)
    assert kind == FAILED
    assert text.startswith(f"Game, lane 5 (seed {lane_seeds(1, 5, 1)[0]}, last action {RAISE}): ValueError: boom")
    assert text.endswith("ValueError: boom")
    assert "lane.py" not in text, "only the environment's own frames"
    assert turn(one, board) == 0
    assert one.env is not env
    assert board.rows["first"][0]
    assert not board.rows["over"][0]
    assert turn(one, board) == 0
    assert board.rows["obs"][0, 0] == 1


def test_sys_exit_is_a_fault_like_any():
    one, board, _ = lane(lambda: faulty.Obedient(length=9))
    turn(one, board)
    assert turn(one, board, EXIT) == ~0
    assert board.read(0)[0] == FAILED
    assert "SystemExit" in board.read(0)[1]


def test_a_row_beyond_its_bounds_by_rounding_is_remarked_once():
    class Near(faulty.Obedient):
        def __init__(self):
            super().__init__(length=1)
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
            self.observation_space.high[0] = 1.0

        def _see(self):
            return np.array([1.0000000000000002, 0.0, 0.0, 0.0])

    one, board, _ = lane(Near)
    assert turn(one, board) == ~0
    kind, text = board.read(0)
    assert kind == ROUNDED
    assert "1.0000000000000002 at [0] is not in [-inf, 1], but only by rounding" in text
    assert board.rows["obs"][0, 0] == 1.0000000000000002
    assert board.rows["first"][0]
    assert [turn(one, board) for _ in range(4)] == [0] * 4


def test_a_time_limit_that_is_told_in_the_old_way_is_remarked_once():
    class OldLimit(faulty.Obedient):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated or truncated, False, {"TimeLimit.truncated": terminated or truncated}

    one, board, _ = lane(lambda: OldLimit(length=2))
    answers = [turn(one, board) for _ in range(9)]
    assert answers.count(~0) == 1
    kind, text = board.read(0)
    assert kind == ROUNDED
    assert text.startswith("Game: info says TimeLimit.truncated of a terminated episode, which is not read: return")


def test_building_that_fails_at_first_is_the_users_mistake_and_later_a_fault():
    one, board, _ = lane(faulty.Unbuildable)
    assert turn(one, board) == ~0
    assert board.read(0)[0] == UNBUILT
    makes = [faulty.Obedient, faulty.Unbuildable, faulty.Obedient]
    one, board, _ = lane(lambda: makes.pop(0)())
    turn(one, board)
    assert turn(one, board, RAISE) == ~0
    board.faults[0] = 1  # as the pool counts
    assert turn(one, board) == ~0
    kind, text = board.read(0)
    assert kind == FAILED
    assert "no licence" in text
    assert turn(one, board) == 0


def test_broken_spaces_are_told_with_declared_and_given():
    one, board, _ = lane(faulty.Obedient)
    turn(one, board)
    turn(one, board, SHAPE)
    kind, text = board.read(0)
    assert kind == BROKEN
    assert text == (
        "Game, lane 5: observation breaks its declared space: declared float64 [4], given float64 [3] "
        "(rule shape; polyplay check ENV explains)"
    )
    other, board, _ = lane(lambda: faulty.Seeded())
    take_turn(other)
    assert board.read(0)[0] == BROKEN
    assert "by the first environment" in board.read(0)[1]


def test_restarts_do_not_repeat_the_seed():
    one, board, _ = lane(faulty.Obedient)
    before = unit_seed(one)
    board.faults[0] = 1
    assert unit_seed(one) != before


def test_one_line_names_the_place():
    def fail():
        raise ValueError("a\n  b")

    with pytest.raises(
        UserError, match=r"^x: could not be built: ValueError: a b \(test_lane.py:\d+\) \(rule build;.*\)$"
    ):
        build.build_env(fail, "x")


def test_describe():
    spec = build.describe("CartPole-v1", {"max_episode_steps": 7})
    assert spec.describe["time limit"] == "7 steps"
    assert spec.describe["environment"] == "CartPole-v1"
    assert spec.obs.shape == (4,)
    assert np.dtype(spec.obs.dtype) == np.float32
