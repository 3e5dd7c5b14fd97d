from __future__ import annotations

import pytest

from polyplay.envs import Envs
from polyplay.envs.process_pool import ProcessPool
from tests.envs import faulty


@pytest.fixture
def pools():
    opened: list = []

    def open_pool(name=faulty.Obedient, lanes=4, seed=3, lane=0, **kw) -> ProcessPool:
        kw.setdefault("workers", 2)
        opened.append(Envs(name, lanes, **kw).open(seed, lane))
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()
