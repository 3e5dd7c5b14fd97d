"""Global random generators of a process: those of Python, NumPy and torch, which environments may use.

In an environment process, only environments use these generators. In other processes, other code uses them too: with
`--serial`, in the workers of a3c, and for vector environments. There, a pool installs separate generator states while
its environments step. A pool saves the generator states with its lanes, so that a resumed run draws the same random
numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from polyplay.core import platform
from polyplay.core.tree import Batch

_seed: int | None = None  # last seed of the generators; None: this process steps no environments
_forks = 0  # number of processes forked since this seed
_outside: dict[str, Any] = {}  # the process's own states, while a pool's states are installed


def seed_process(seed: int) -> None:
    """Seed the global generators for environments. Forked children get seeds derived from `seed`."""
    global _seed, _forks
    _seed, _forks = seed, 0
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@contextlib.contextmanager
def seeding_torch() -> Iterator[None]:
    """If torch is imported for the first time within this context, seed its generator like those of the process."""
    loaded = "torch" in sys.modules
    try:
        yield
    finally:
        if not loaded and _seed is not None and (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(_seed)


def _count_fork() -> None:
    global _forks
    _forks += 1


def _seed_fork() -> None:
    """Seed a child process forked by an environment, so that the child draws other numbers than its parent."""
    if _seed is not None:
        seed_process(int(np.random.SeedSequence([_seed, _forks]).generate_state(1)[0]) >> 1)


platform.at_fork(_count_fork, _seed_fork)


class GlobalGenerators:
    """Generator states of one pool, in a process whose other code draws random numbers too."""

    here: ClassVar[GlobalGenerators | None] = None  # the states that are installed now

    def __init__(self, seed: int):
        self._seed, self._states = seed, dict[str, Any]()

    def enter(self) -> None:
        """Install the states of this pool in the global generators."""
        global _outside, _seed
        if (here := GlobalGenerators.here) is self:  # read once: another thread may call leave()
            return
        if here is None:
            _outside = _states()
        else:
            here._states = _states()
        GlobalGenerators.here = self
        if self._states:
            _seed = self._seed
            _restore(self._states)
        else:
            seed_process(self._seed)

    def leave(self) -> None:
        """Restore the process's own states if this pool's states are installed."""
        global _seed
        if GlobalGenerators.here is self:
            GlobalGenerators.here = _seed = None
            _restore(_outside)

    def save(self) -> Batch:
        """Return the states as arrays. Raises ValueError like save_generators."""
        return save_generators(None if GlobalGenerators.here is self else self._states)

    def load(self, saved: Batch) -> None:
        """Install states that save() returned."""
        self.enter()
        load_generators(saved)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Within this context, install the process's own states. Draws and seeds in the context do not affect a pool."""
    pool = GlobalGenerators.here
    if pool is None:
        yield
        return
    pool._states = _states()
    pool.leave()
    try:
        yield
    finally:
        pool.enter()


def save_generators(states: dict[str, Any] | None = None) -> Batch:
    """Return `states`, or else the current states, as arrays. The state of torch is included only if torch is loaded.
    Raises ValueError if NumPy's generator has an unknown kind.
    """
    states = states or _states()
    _, numbers, gauss = states["python"]
    python = {"numbers": np.array(numbers, np.int64), "gauss": np.array(np.nan if gauss is None else gauss)}
    kind, keys, at, kept, number = states["numpy"]
    if kind != "MT19937":
        raise ValueError(f"NumPy's global generator is {kind}; only MT19937, its usual one, is known")
    numpy = {"numbers": np.append(keys.astype(np.int64), at), "gauss": np.array(number if kept else np.nan)}
    of_torch = {"torch": states["torch"].numpy().copy()} if "torch" in states else {}
    return {"python": python, "numpy": numpy, **of_torch}


def load_generators(saved: Batch) -> None:
    """Set the global generators to states that save_generators returned."""
    gauss = {name: float(saved[name]["gauss"]) for name in ("python", "numpy")}
    numbers = saved["python"]["numbers"].tolist(), saved["numpy"]["numbers"]
    states: dict[str, Any] = {"python": (3, tuple(numbers[0]), None if np.isnan(gauss["python"]) else gauss["python"])}
    kept = (0, 0.0) if np.isnan(gauss["numpy"]) else (1, gauss["numpy"])
    states["numpy"] = ("MT19937", numbers[1][:-1].astype(np.uint32), int(numbers[1][-1]), *kept)
    if "torch" in saved:
        torch = importlib.import_module("torch")  # the environment had loaded torch
        states["torch"] = torch.from_numpy(np.array(saved["torch"]))
    _restore(states)


def _states() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    of_torch = {} if torch is None else {"torch": torch.random.get_rng_state()}
    return {"python": random.getstate(), "numpy": np.random.get_state(), **of_torch}


def _restore(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if "torch" in states:
        sys.modules["torch"].random.set_rng_state(states["torch"])
