from __future__ import annotations

import os
import pickle
import threading
import time

import numpy as np
import pytest

from polyplay.core.tree import Field
from polyplay.envs import Box, Discrete, Envs, Greedy
from tests.envs import faulty
from tests.envs.faulty import FINE, HANG, RAISE, acts, gone, pids


def test_rows_follow_the_convention(pools):
    """Steps, final observation, ignored action, first row; terminated and truncated told apart."""
    for truncate in (False, True):
        pool = pools(options={"length": 3, "truncate": truncate})
        seen = []
        for _ in range(9):
            lanes, row = pool.recv(60)
            assert lanes == slice(0, 4)
            assert row["reward"].dtype == np.float32
            seen.append(
                [row["obs"][2, 0], *(row[k][2] for k in ("reward", "terminated", "truncated", "first", "over"))]
            )
            pool.send(lanes, acts())
        one = [[0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0], [3, 3, not truncate, truncate, 0, 1]]
        assert seen == [*one, *one, one[0]]


def test_action_on_a_final_row_is_ignored(pools):
    pool = pools(options={"length": 1})
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts())
    lanes, row = pool.recv(60)
    assert row["over"].all()
    pool.send(lanes, np.full(4, RAISE))
    _, row = pool.recv(60)
    assert row["first"].all()
    assert pool.restarts == 0


def test_one_lane_one_worker(pools):
    pool = pools(lanes=1, workers=0)
    lanes, row = pool.recv(60)
    assert lanes == slice(0, 1)
    assert row["obs"].shape == (1, 4)


def test_no_torch_and_several_lanes_per_process(pools):
    pool = pools(lanes=6)
    _, row = pool.recv(60)
    assert not row["obs"][:, 3].any(), "torch was imported into an environment process"
    assert len(set(row["obs"][:, 2])) == 2
    assert os.getpid() not in row["obs"][:, 2]


def test_rows_of_fixed_groups_are_views_in_place(pools):
    pool = pools()
    lanes, row = pool.recv(60)
    again = row["obs"]
    pool.send(lanes, acts())
    lanes, row = pool.recv(60)
    assert np.shares_memory(again, row["obs"])
    assert again[0, 0] == 1


def test_groups_take_turns_and_every_process_serves_each(pools):
    pool = pools(groups=2)
    assert pool.fixed
    held = []
    for turn in range(6):
        lanes, row = pool.recv(60)
        assert lanes == slice(2 * (turn % 2), 2 * (turn % 2) + 2)
        assert len(set(row["obs"][:, 2])) == 2
        held.append(row["obs"][:, 0].tolist())
        pool.send(lanes, acts(2))
    assert held == [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]]


def test_a_parked_group_does_not_stop_the_other(pools):
    pool = pools(groups=2)
    first, _ = pool.recv(60)  # parked
    for _ in range(3):
        lanes, _ = pool.recv(60)
        assert lanes == slice(2, 4)
        pool.send(lanes, acts(2))
    pool.send(first, acts(2))
    assert {pool.recv(60)[0].start, pool.recv(60)[0].start} == {0, 2}


def test_send_answers_only_what_recv_gave(pools):
    pool = pools(groups=2)
    with pytest.raises(ValueError, match="recv"):
        pool.send(slice(0, 2), acts(2))
    lanes, _ = pool.recv(60)
    with pytest.raises(ValueError, match=r"0…9"):
        pool.send(lanes, np.array([0, 10]))
    with pytest.raises(ValueError, match="integers"):
        pool.send(lanes, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="whole group"):
        pool.send(slice(0, 1), acts(1))
    pool.recv(60)
    with pytest.raises(RuntimeError, match="before"):
        pool.recv(60)


def test_greedy_serves_whoever_is_ready(pools):
    """A slow lane does not stop the others; no lane is lost or given twice."""
    pool = pools(batching=Greedy(2), lanes=4, step_timeout=30)
    counts = np.zeros(4, int)
    after = 0  # rows since lane 3 was given away
    while after < 30:
        lanes, row = pool.recv(60)
        after += counts[3]
        assert isinstance(lanes, np.ndarray)
        assert 1 <= len(lanes) <= 2
        assert row["obs"][:, 0].tolist() == (counts[lanes] % 6).tolist()
        counts[lanes] += 1
        pool.send(lanes, np.where(lanes == 3, HANG, FINE))  # lane 3 and its process are busy for ever
    assert counts[3] == 1
    assert counts[:2].min() >= 10


def test_several_threads_serve_one_pool(pools):
    pool = pools(batching=Greedy(3), lanes=6)
    counts, failed = np.zeros(6, int), []

    def serve() -> None:
        try:
            while (counts < 20).any():
                lanes, _ = pool.recv(60)
                counts[lanes] += 1
                pool.send(lanes, np.zeros(len(lanes), int))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failed
    assert (counts >= 20).all()


def test_timeout_keeps_the_pool_usable(pools):
    pool = pools(step_timeout=30)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane3=HANG))
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        pool.recv(0.2)
    assert time.monotonic() - start >= 0.2
    with pytest.raises(TimeoutError):
        pool.recv(0)
    processes = pids(pool)
    pool.close()
    assert gone(processes)


def test_seeds_are_per_lane_of_the_run_and_independent_of_the_workers(pools):
    first = pools(faulty.Seeded, 4, seed=5, workers=2).recv(60)[1]["obs"]["own"].copy()
    other = pools(faulty.Seeded, 2, seed=5, lane=2, workers=1).recv(60)[1]["obs"]
    assert len(set(first)) == 4
    assert other["own"].tolist() == first[2:].tolist()
    assert pools(faulty.Seeded, 4, seed=6).recv(60)[1]["obs"]["own"].tolist() != first.tolist()


def test_global_generators_differ_between_processes(pools):
    row = pools(faulty.Seeded, 2).recv(60)[1]
    assert row["obs"]["all"][0] != row["obs"]["all"][1]


def test_box_actions_are_clipped_and_dict_observations_nest(pools):
    pool = pools(faulty.Seeded, 2)
    assert pool.spec.obs == {"own": Field((), "float64"), "all": Field((1,), "float64")}
    assert pool.spec.action == Box((2,), np.float32([-1, -2]), np.float32([1, 2]))
    lanes, row = pool.recv(60)
    assert row["obs"]["all"].shape == (2, 1)
    pool.send(lanes, np.float32([[0.5, 0.25], [-7, 9]]))
    assert pool.recv(60)[1]["reward"].tolist() == [3.0, 19.0]


def test_discrete_start_is_added_for_the_environment(pools):
    pool = pools(options={"start": 5})
    assert pool.spec.action == Discrete(10)
    lanes, _ = pool.recv(60)
    pool.send(lanes, acts(lane1=RAISE))
    assert pool.recv(60)[1]["first"].tolist() == [False, True, False, False]


def test_factories_may_close_over_anything(pools):
    length = 2
    envs = Envs(lambda: faulty.Obedient(length), 2, workers=1)
    envs = pickle.loads(pickle.dumps(envs))
    pool = envs.open(0)
    try:
        for _ in range(3):
            lanes, row = pool.recv(60)
            ended = row["terminated"].tolist()
            pool.send(lanes, acts(2))
        assert ended == [True, True]
    finally:
        pool.close()


# --------------------------------------------------------------------------------------- failures


def test_a_lane_that_comes_is_there_once_its_first_row_is():
    """Else a scheduler would measure while new environments are being built."""
    pool = Envs("CartPole-v1", 4, workers=4, batching=Greedy(4), active=2).open(0)
    try:
        seen: set[int] = set()

        def until(wanted: set[int]) -> None:
            while not wanted <= seen:
                lanes, _ = pool.recv(60)
                seen.update(np.arange(4)[lanes].tolist())
                pool.send(lanes, np.zeros(len(np.arange(4)[lanes]), np.int64))

        until({0, 1})
        assert pool.present == 2
        pool.scale(4)
        assert pool.present == 2, "two are being built"
        until({2, 3})
        assert pool.present == 4
        pool.scale(1)
        assert pool.present == 4, "three have yet to go"
    finally:
        pool.close()
