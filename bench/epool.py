"""What Polyplay relies on in EnvPool, looked for in the real one: `pip install 'polyplay[envpool]'`, then this.

The tests use a stand-in (tests/envs/fakepool.py), since EnvPool with its assets takes some 780 MB. Every line is a
claim that holds; the first that does not ends the script with exit status 1. Nothing is measured here.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import polyplay
from polyplay.core import tree
from polyplay.envs import Discrete, Envs, Greedy

FAMILIES = ("Pong-v5", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "LunarLander-v3")
DICTS = ("FetchReach-v1", "MiniGrid-Empty-5x5-v0")
RULES: tuple[dict[str, Any], ...] = ({}, {"groups": 2}, {"batching": Greedy(3)})


def lanes_of(envs: Envs, turns: int, seed: int = 3) -> list[list[dict[str, Any]]]:
    """Rows per lane; a lane's actions depend on its own past alone, so that rules can be compared."""
    pool, rows = envs.open(seed), [[] for _ in range(envs.lanes)]  # type: Any, list[list[dict[str, Any]]]
    random = [np.random.default_rng(i) for i in range(envs.lanes)]
    action = envs.spec.action
    for _ in range(turns):
        lanes, batch = pool.recv()
        chosen: list[Any] = []
        for k, lane in enumerate(np.arange(envs.lanes)[lanes].tolist()):
            rows[lane].append(tree.map(lambda x, k=k: np.copy(x[k]), batch))
            draw = random[lane]
            chosen.append(draw.integers(action.n) if isinstance(action, Discrete) else draw.normal(size=action.shape))
        pool.send(lanes, np.array(chosen, np.int64 if isinstance(action, Discrete) else np.float32))
    pool.close()
    return rows


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    pairs = zip(a, b, strict=False)
    return all((x == y).all() for p, q in pairs for (_, x), (_, y) in zip(tree.leaves(p), tree.leaves(q), strict=True))


def convention(rows: list[dict[str, Any]]) -> bool:
    """First rows follow ends and nothing else, and have no reward."""
    ended = True
    for row in rows:
        if bool(row["first"]) != ended or (row["first"] and row["reward"]):
            return False
        ended = bool(row["terminated"] | row["truncated"])
    return True


def family(name: str) -> bool:
    """Under every rule, with 1 and 2 threads, lanes have the same rows, and they are the convention."""
    short = {"max_episode_steps": 15}
    plain = lanes_of(Envs(f"envpool:{name}", 4, workers=1, options=short), 60)
    for rule in RULES:
        rows = lanes_of(Envs(f"envpool:{name}", 4, workers=2, options=short, **rule), 60)
        if not all(len(b) > 5 and same(a, b) and convention(b) for a, b in zip(plain, rows, strict=True)):
            return False
    return any(sum(bool(r["first"]) for r in lane) > 1 for lane in plain)


def seeds() -> bool:
    """CartPole starts somewhere else in every lane, and with every seed."""
    envs = Envs("envpool:CartPole-v1", 4)
    return len({r[0]["obs"].tobytes() for seed in (0, 1) for r in lanes_of(envs, 1, seed)}) == 8


def lives() -> bool:
    """Breakout, five lives, with episodic_life: ends that are not over, then one that is."""
    (rows,) = lanes_of(Envs("envpool:Breakout-v5", 1, options={"episodic_life": True}), 400)
    ends = [bool(r["over"]) for r in rows if r["terminated"]]
    return convention(rows) and ends[:5] == [False, False, False, False, True]


def whole_games() -> bool:
    (rows,) = lanes_of(Envs("envpool:Breakout-v5", 1), 400)
    ends = [bool(r["over"]) for r in rows if r["terminated"]]
    return convention(rows) and bool(ends) and all(ends)


def cut() -> bool:
    (rows,) = lanes_of(Envs("envpool:Pong-v5", 1, options={"max_episode_steps": 10}), 30)
    return [t for t, r in enumerate(rows) if r["truncated"] and r["over"] and not r["terminated"]] == [10, 21]


def parked() -> bool:
    """A lane that is not answered for long does not hold up the others; pools are given up with steps under way."""
    pool = Envs("envpool:Pong-v5", 4, batching=Greedy(3)).open(0)
    lanes, _ = pool.recv()
    for _ in range(50):
        pool.send(lanes[1:], np.zeros(len(lanes) - 1, np.int64))
        again, _ = pool.recv()
        lanes = np.concatenate([lanes[:1], again])
    pool.send(lanes, np.zeros(len(lanes), np.int64))
    pool.close()
    return len(lanes) == 4


def learns(on: str) -> bool:
    settings: dict[str, Any] = dict(
        network="mlp", optimizer="adam", entropy_cost=0.0, lanes=8, unroll=8, steps=40_000, learning_rate=4e-3
    )
    more: dict[str, Any] = dict(gamma=0.98, lam=0.98, reward="scale", inputs="normalize", anneal="constant", replicas=1)
    with tempfile.TemporaryDirectory() as place:
        run = polyplay.train("a2c", env="envpool:CartPole-v1", on=on, run=f"{place}/run", **settings, **more)
        return run.summary["episodic_return_mean"] > 100 and run.evaluate(10)["episodic_return_mean"] > 100


def pong(system: str) -> bool:
    with tempfile.TemporaryDirectory() as place:
        run = polyplay.train(system, env="envpool:Pong-v5", preset="quick", steps=2_000, run=f"{place}/run")
        return run.exit_code == 0 and run.summary["frames"] >= 8_000


CLAIMS: tuple[tuple[str, Callable[[], bool]], ...] = (
    *((f"{n}: rows by convention, the same under every rule and with any threads", lambda n=n: family(n))
      for n in (*FAMILIES, *DICTS)),
    ("every lane and every run has seeds of its own", seeds),
    ("with episodic_life a lost life terminates, the game goes on", lives),
    ("without it games are played to their end", whole_games),
    ("time limits truncate at the right row", cut),
    ("lanes can be parked, and a pool given up in mid-step", parked),
    ("a2c learns CartPole with it, normalised, in a process, and evaluates", lambda: learns("process")),
    ("a2c trains on its Pong", lambda: pong("a2c")),
    ("impala trains on its Pong", lambda: pong("impala")),
)  # fmt: skip


def main() -> int:
    warnings.simplefilter("ignore")
    import envpool

    print(f"EnvPool {envpool.__version__}, {len(envpool.list_all_envs())} tasks", flush=True)
    for claim, holds in CLAIMS:
        good = holds()
        print(f"{'holds' if good else 'FAILS'}  {claim}", flush=True)
        if not good:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
