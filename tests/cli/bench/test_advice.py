from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from polyplay.cli.bench import advice
from polyplay.cli.bench.limits import CoreTime


def wired(title: str = "ALE/Pong-v5", kind: str = "ale", **values: Any) -> Any:
    return SimpleNamespace(envs=SimpleNamespace(title=title), kind=kind, values=values, keywords={})


def test_a_concrete_option_that_the_page_has():
    a2c = wired(lanes=32, unroll=5, groups=1)
    assert advice.change("infer", a2c).startswith("try --lanes 64 (larger acting batches")
    assert advice.change("learn", a2c).startswith("try --unroll 10 ")
    assert advice.change("overhead", a2c).startswith("try --lanes 64 ")
    assert advice.change("idle", a2c).startswith("try --groups 2 ")
    ppo = wired(lanes=16, unroll=128, epochs=3)
    assert advice.change("learn", ppo).startswith("try --epochs 2 ")
    assert advice.change("learn", wired(epochs=1, min_batch=40)).startswith("try --min-batch 80 ")
    assert advice.change("idle", wired(actors=2, lanes=16)).startswith("try --actors 3 ")


def test_where_a_page_has_none():
    assert "more cores" in advice.change("infer", wired(workers=2, unroll=20))
    assert "no setting" in advice.change("idle", wired(workers=2))


def test_precision_comes_first_where_it_promises_something():
    rows = [
        {"network": "a3c", "precision": "float32", "limit": 1000.0},
        {"network": "a3c", "precision": "bfloat16", "limit": 1200.0},
        {"network": "mlp", "precision": "float32", "limit": 1200.0},
        {"network": "mlp", "precision": "bfloat16", "limit": 1000.0},
    ]
    assert advice.faster(rows, "a3c", "float32") == "bfloat16"
    assert advice.faster(rows, "a3c", "bfloat16") == ""
    assert advice.faster(rows, "mlp", "bfloat16") == "float32"
    assert advice.faster(rows, "nature", "float32") == ""
    assert advice.change("learn", wired(unroll=5), "bfloat16").startswith("try --precision bfloat16")
    assert advice.change("overhead", wired(unroll=5), "bfloat16").startswith("try --unroll 10")


def test_environments():
    assert "more cores" in advice.change("env", wired())
    assert "--atari baselines" in advice.change("env", wired(kind="inline"))
    assert "polyplay check CartPole-v1" in advice.change("env", wired("CartPole-v1", "processes"))


def test_the_sentence_says_how_much():
    zero = dict.fromkeys(CoreTime.__dataclass_fields__, 0.0)
    where = CoreTime(**{**zero, "env": 100.0, "learn": 200.0, "dearer_learn": 50.0, "idle": 150.0})
    told = advice.sentence("learn", where, wired(unroll=5))
    assert told.startswith("learning takes 50 % of the core time: try --unroll 10 ")
