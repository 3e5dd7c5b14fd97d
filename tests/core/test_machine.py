from __future__ import annotations

import threading

from polyplay.core.machine import ThreadPool


def test_each_thread_does_its_part_and_the_caller_the_first():
    team, begun = ThreadPool(3, lambda: None), threading.current_thread()
    found = team.each(lambda i: (i, threading.current_thread() is begun))
    assert found == [(0, True), (1, False), (2, False)]
    assert [team.part(i, 10) for i in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 10)]
