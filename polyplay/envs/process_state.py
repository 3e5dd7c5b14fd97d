"""What belongs to the process, not to an environment: generators, directory, signals.

An environment process has the global generators of Python, NumPy and torch to itself. Pools that step in a process of
others (`--serial`, the workers of a3c, vector environments) have generators of their own, which are in place while they
step. The order of sets follows from PYTHONHASHSEED, see core/processes. They are saved with a pool's lanes: a resumed
run draws what comes next.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from polyplay.core.tree import Batch

_seed: int | None = None  # what they were seeded with last; None: this process has no environments
_forks = 0  # processes that this one has forked since
_late: int | None = None  # torch's seed, where an environment may load torch yet
_outside: dict[str, Any] = {}  # the generators of the process itself, while a pool's are in place
_here: GlobalGenerators | None = None  # whose are in place


def seed_process(seed: int) -> None:
    """Seed them in a process that has nothing but environments."""
    global _late, _seed, _forks
    _seed, _forks = seed, 0
    random.seed(seed)
    np.random.seed(seed)
    _late = seed
    seed_torch()


def seed_torch() -> None:
    """Once torch is loaded, it is seeded too: an environment may load it as late as it is built."""
    global _late
    if _late is not None and (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(_late)
        _late = None


def _count_fork() -> None:
    global _forks
    _forks += 1


def _seed_fork() -> None:
    """What an environment forks, such as the processes of a vector environment, would draw what it draws itself."""
    if _seed is not None:
        seed_process(int(np.random.SeedSequence([_seed, _forks]).generate_state(1)[0]) >> 1)


os.register_at_fork(before=_count_fork, after_in_child=_seed_fork)


class GlobalGenerators:
    """Those of one pool in a process that has others: they go on where they were when the pool stepped last."""

    def __init__(self, seed: int):
        self._seed, self._states = seed, dict[str, Any]()

    def enter(self) -> None:
        """From now on the global generators are these."""
        global _here, _outside, _seed
        if _here is self:
            return
        if _here is None:
            _outside = _states()
        else:
            _here._states = _states()
        _here = self
        if self._states:
            _seed = self._seed
            _restore(self._states)
        else:
            seed_process(self._seed)

    def leave(self) -> None:
        """Give those of the process back."""
        global _here, _seed
        if _here is self:
            _here = _seed = None
            _restore(_outside)

    def save(self) -> Batch:
        """Where they are, as arrays. Raises ValueError: NumPy's is of an unknown kind."""
        return _to_arrays(_states() if _here is self or not self._states else self._states)

    def load(self, saved: Batch) -> None:
        """Go on from there."""
        self.enter()
        load_generators(saved)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Meanwhile the generators of the process itself are in place: what it draws and seeds is no pool's."""
    pool = _here
    if pool is None:
        yield
        return
    pool._states = _states()
    pool.leave()
    try:
        yield
    finally:
        pool.enter()


def save_generators() -> Batch:
    """Where those in place are, as arrays; of torch where it is loaded. Raises ValueError, as GlobalGenerators.save."""
    return _to_arrays(_states())


def load_generators(saved: Batch) -> None:
    """Those in place go on from there."""
    global _late
    gauss = {name: float(saved[name]["gauss"]) for name in ("python", "numpy")}
    numbers = saved["python"]["numbers"].tolist(), saved["numpy"]["numbers"]
    states: dict[str, Any] = {"python": (3, tuple(numbers[0]), None if np.isnan(gauss["python"]) else gauss["python"])}
    kept = (0, 0.0) if np.isnan(gauss["numpy"]) else (1, gauss["numpy"])
    states["numpy"] = ("MT19937", numbers[1][:-1].astype(np.uint32), int(numbers[1][-1]), *kept)
    if "torch" in saved:
        torch = importlib.import_module("torch")  # which the environment had loaded
        states["torch"], _late = torch.from_numpy(np.array(saved["torch"])), None
    _restore(states)
    if "late" in saved:
        _late = int(saved["late"])
        seed_torch()


def _to_arrays(states: dict[str, Any]) -> Batch:
    _, numbers, gauss = states["python"]
    python = {"numbers": np.array(numbers, np.int64), "gauss": np.array(np.nan if gauss is None else gauss)}
    kind, keys, at, kept, number = states["numpy"]
    if kind != "MT19937":
        raise ValueError(f"NumPy's global generator is {kind}; only MT19937, its usual one, is known")
    numpy = {"numbers": np.append(keys.astype(np.int64), at), "gauss": np.array(number if kept else np.nan)}
    of_torch = {"torch": states["torch"].numpy().copy()} if "torch" in states else {}
    if not of_torch and _late is not None:
        of_torch = {"late": np.array(_late, np.int64)}
    return {"python": python, "numpy": numpy, **of_torch}


def _states() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    of_torch = {} if torch is None else {"torch": torch.random.get_rng_state()}
    return {"python": random.getstate(), "numpy": np.random.get_state(), **of_torch}


def _restore(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if "torch" in states:
        sys.modules["torch"].random.set_rng_state(states["torch"])


# What belongs to the process, not to the environments that are stepped in it: the working directory, what Ctrl-C and
# SIGTERM do, how NumPy answers overflows, torch's default type. What an environment changes there is its own: it is put
# back while others work.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Surroundings:
    """`with` it environments have what they changed the last time, and afterwards the process what it had. Looking is
    slow: those that changed nothing while they were built are not looked at again.
    """

    def __init__(self) -> None:
        self._inside: dict[str, Any] | None = None  # what they changed; None: they are not built yet
        self._outside: dict[str, Any] = {}

    def __enter__(self) -> None:
        if self._inside != {}:
            self._outside = _look()
            _change(self._inside or {})

    def __exit__(self, *exception: object) -> None:
        if self._inside == {}:
            return
        now = _look()
        self._inside = {name: value for name, value in now.items() if value != self._outside.get(name, value)}
        _change({name: self._outside[name] for name in self._inside})


def _look() -> dict[str, Any]:
    found: dict[str, Any] = {"numpy": np.geterr(), "signals": tuple(map(signal.getsignal, SIGNALS))}
    with contextlib.suppress(OSError):  # it was removed
        found["folder"] = os.getcwd()
    return found if (torch := sys.modules.get("torch")) is None else {**found, "torch": torch.get_default_dtype()}


def _change(what: dict[str, Any]) -> None:
    for name, value in what.items():
        with contextlib.suppress(OSError, ValueError):  # a removed folder; not the main thread, which sees no signals
            if name == "folder":
                os.chdir(value)
            elif name == "numpy":
                np.seterr(**value)
            elif name == "torch":
                sys.modules["torch"].set_default_dtype(value)
            else:
                for number, handler in zip(SIGNALS, value, strict=True):
                    signal.signal(number, handler)
