"""Whole systems with their learners on a device that is pretended: the same losses as on the CPU, checkpoints that both
read, and no wait for the device that isn't meant.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretend import CUDA, WAITS, Far, pretended
from reports import rows

import polyplay
from polyplay import checkpoint, nets
from polyplay.envs import Discrete, EnvSpec
from polyplay.nets.precision import use
from polyplay.tree import Field

FEW = {"trace": True, "serial": True, "tensorboard": False, "seed": 3, "anneal": "constant", "report_every": 60.0}
CATCH = {**FEW, "env": "toy:catch", "network": "mlp", "lanes": 8}
MEMORY = {**CATCH, "env": "toy:memory", "core": "lstm"}
PONG = {**FEW, "env": "ALE/Pong-v5", "network": "a3c", "lanes": 4}
ONE = {"replicas": 1, "unroll": 5, "steps": 400}
RUNS = {
    "a2c": ("a2c", {**CATCH, **ONE}),
    "a2c, two replicas": ("a2c", {**CATCH, **ONE, "replicas": 2}),
    "a2c with a memory, two groups": ("a2c", {**MEMORY, **ONE, "groups": 2, "core_size": 8}),
    "a2c with statistics": ("a2c", {**CATCH, **ONE, "inputs": "normalize", "reward": "scale", "env": "CartPole-v1"}),
    "a2c, pictures": ("a2c", {**PONG, **ONE, "inputs": "centre", "groups": 2, "steps": 100}),
    "a2c, pictures, nothing reused": ("a2c", {**PONG, **ONE, "reuse": False, "steps": 80}),
    "accel in chunks": ("accel", {**CATCH, **ONE, "replicas": 2, "sync": "chunked"}),
    "ppo": ("ppo", {**CATCH, **ONE, "epochs": 2, "minibatches": 2, "steps": 200, "unroll": 8}),
    "ppo with a memory": ("ppo", {**MEMORY, **ONE, "epochs": 2, "minibatches": 2, "steps": 300, "core_size": 8}),
    "impala": ("impala", {**CATCH, "batch": 16, "unroll": 5, "steps": 800}),
    "impala, one slot": ("impala", {**MEMORY, "batch": 8, "unroll": 5, "steps": 400}),
    "impala, two learners, lag 0": (
        "impala",
        {**CATCH, "learners": 2, "batch": 16, "unroll": 5, "lag": 0, "steps": 800},
    ),
    "impala, pictures": ("impala", {**PONG, "batch": 8, "unroll": 4, "steps": 100}),
    "appo": ("appo", {**CATCH, "batch": 16, "unroll": 5, "epochs": 2, "minibatches": 2, "steps": 400}),
    "ga3c": ("ga3c", {k: v for k, v in CATCH.items() if k != "lanes"} | {"agents": 4, "schedule": "off", "steps": 300}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_learner_elsewhere_learns_the_same(name, tmp_path, monkeypatch):
    """Losses of updates, as far as last bits don't choose other actions; all numbers of a checkpoint."""
    system, settings = RUNS[name]
    polyplay.train(system, run=str(tmp_path / "cpu"), device="cpu", **settings)
    with pretended(monkeypatch):
        polyplay.train(system, run=str(tmp_path / "cuda"), device="cuda", **settings)
    losses = [[row["loss"] for row in rows(tmp_path / run / "updates.jsonl")] for run in ("cpu", "cuda")]
    assert len(losses[0]) >= 4
    assert WAITS["back"] > 0  # it did run there
    np.testing.assert_allclose(losses[1][:8], losses[0][:8], rtol=2e-3, atol=1e-4)
    kept = [checkpoint.open_checkpoint(checkpoint.newest(tmp_path / run, print)) for run in ("cpu", "cuda")]
    for part in ("policy", "optimizer"):
        one, other = (found.arrays(f"agents/0/{part}") for found in kept)
        assert one.keys() == other.keys()
        assert all(one[k].shape == other[k].shape and one[k].dtype == other[k].dtype for k in one)


@pytest.mark.parametrize("system", ["a2c", "impala", "ppo"])
@pytest.mark.parametrize("ways", [("cuda", "cpu"), ("cpu", "cuda")], ids="-".join)
def test_a_checkpoint_written_on_one_goes_on_on_the_other(system, ways, tmp_path, monkeypatch):
    name = {"a2c": "a2c with a memory, two groups"}.get(system, system)
    _, settings = RUNS[name]
    run = str(tmp_path / "run")
    with pretended(monkeypatch):
        polyplay.train(system, run=run, device=ways[0], **{**settings, "steps": 200})
        before = len(rows(tmp_path / "run" / "updates.jsonl"))
        polyplay.resume(run, steps=400, device=ways[1])
        assert polyplay.evaluate(run, episodes=2, device=ways[1])["episodes"] == 2
    whole = str(tmp_path / "whole")
    polyplay.train(system, run=whole, device="cpu", **{**settings, "steps": 400})
    losses = [[row["loss"] for row in rows(tmp_path / name / "updates.jsonl")] for name in ("whole", "run")]
    assert len(losses[1]) > before >= 2
    np.testing.assert_allclose(losses[1][: before + 2], losses[0][: before + 2], rtol=5e-3, atol=1e-3)


def test_replicas_elsewhere_stay_equal_to_the_bit(tmp_path, monkeypatch):
    from polyplay import learning

    made = []
    real = learning.Learner.__init__
    monkeypatch.setattr(learning.Learner, "__init__", lambda self, *a: (real(self, *a), made.append(self))[0])
    system, settings = RUNS["a2c, two replicas"]
    with pretended(monkeypatch):
        polyplay.train(system, run=str(tmp_path / "run"), device="cuda", **settings)
    assert len(made) == 2
    one, other = (learner.vector for learner in made)
    assert isinstance(one.flat, Far)
    assert one.flat.tolist() == other.flat.tolist()


@pytest.mark.parametrize("network", ["nature", "impala"])
def test_torsos_in_bfloat16_take_bytes_there_and_convert_once(network, monkeypatch):
    spec = EnvSpec(obs=Field((4, 84, 84), "uint8"), action=Discrete(3))
    policy = nets.make(network, spec)
    obs = torch.randint(0, 256, (2, 2, 4, 84, 84), dtype=torch.uint8)
    batch = {"obs": obs, "action": torch.zeros(2, 2, dtype=torch.int64), "first": torch.zeros(2, 2, dtype=torch.bool)}
    batch["reward"] = torch.zeros(2, 2)
    with pretended(monkeypatch):
        use(policy.to(CUDA), "bfloat16")
        out = policy.unroll({k: v.to(CUDA) for k, v in batch.items()}, {})
        out["value"].sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in policy.parameters() if p.grad is not None)
        value = out["value"].cpu()
    near = use(nets.make(network, spec), "float32")
    near.load_state_dict({k: v.inner if isinstance(v, Far) else v for k, v in policy.state_dict().items()})
    want = near.unroll(batch, {})["value"]
    assert torch.allclose(value, want, atol=0.02)
    assert not torch.equal(value, want)  # it was bfloat16
