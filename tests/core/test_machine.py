from __future__ import annotations

import threading

import pytest

from polyplay.core.machine import LARGE, ThreadPool, split_size


@pytest.mark.parametrize(
    ("rows", "threads", "n"), [(32, 1, 1), (32, 2, 2), (32, 3, 2), (32, 64, 4), (30, 4, 3), (15, 8, 1), (512, 14, 8)]
)
def test_threads_get_equal_parts_of_at_least_eight_rows(rows: int, threads: int, n: int):
    assert split_size(rows, threads, LARGE) == n
    assert split_size(rows, threads, LARGE - 1) == 1


def test_each_thread_does_its_part_and_the_caller_the_first():
    team, begun = ThreadPool(3, lambda: None), threading.current_thread()
    found = team.each(lambda i: (i, threading.current_thread() is begun))
    assert found == [(0, True), (1, False), (2, False)]
    assert [team.part(i, 10) for i in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 10)]
