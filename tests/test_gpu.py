"""Tests for a real GPU, of what a pretended one can't tell: `pytest -m gpu`, 90 seconds. Learning comes last."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import polyplay
from polyplay.acting import actor
from polyplay.buffers.rollout_queue import Collator, RolloutQueue, row_spec
from polyplay.core import checkpoint, tree
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Field
from polyplay.core.worker import Hyperparameters
from polyplay.envs import Discrete, EnvSpec
from polyplay.learning import learner, losses
from polyplay.nets import device, factory
from polyplay.nets.device import is_half, set_precision
from polyplay.nets.layers import join_tapes
from polyplay.weights import optimizers
from polyplay.weights.params import FlatParams, Params
from polyplay.weights.update import OptimizerSpec, clip_gradient
from tests.learning.test_graphs import LEARNERS, compared
from tests.reports import rows

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
SPEC = EnvSpec(obs=Field((4, 84, 84), "uint8"), action=Discrete(6))
NET = {"network": "mlp", "env": "toy:catch", "device": "cuda", "tensorboard": False, "report_every": 1.0}
A2C = {"lanes": 16, "unroll": 9, "steps": 80_000, "learning_rate": 3e-3, "entropy_cost": 0.01, "optimizer": "adam"}
ACTORS = {"lanes": 8, "batch": 16, "unroll": 9, "steps": 120_000}
IMPALA = {**ACTORS, "learning_rate": 3e-3, "reduction": "mean", "max_grad_norm": 1.0, "optimizer_eps": 1e-5}
IMPALA |= {"optimizer": "adam"}
PPO = {"lanes": 16, "unroll": 16, "steps": 60_000, "learning_rate": 3e-3, "clip_range": 0.2}
ACCEL = {"lanes": 16, "replicas": 2, "unroll": 9, "lam": 0.95, "learning_rate": 1e-2, "steps": 80_000}
GA3C = {"agents": 8, "predictors": 2, "trainers": 2, "schedule": "off", "steps": 90_000, "optimizer": "adam"}
GA3C |= {
    "learning_rate": 3e-3,
    "optimizer_eps": 1e-5,
    "reduction": "mean",
    "unroll": 10,
    "min_batch": 20,
    "max_grad_norm": 1.0,
}
LEARN = {  # each system once: what they share is tested above
    "a2c, two replicas on one GPU": ("a2c", {**A2C, "replicas": 2, "groups": 2}),
    "accel in chunks": ("accel", {**ACCEL, "sync": "chunked"}),
    "ppo": ("ppo", {**PPO, "replicas": 1}),
    "impala, actors there too": ("impala", {**IMPALA, "actors_on": "device"}),
    "appo": ("appo", {**ACTORS, "learning_rate": 5e-3, "epochs": 2, "minibatches": 2, "clip_range": 0.2}),
    "ga3c": ("ga3c", GA3C),
}


def _rows(T: int, B: int, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    first[T // 2, 0] = True
    return {
        "obs": torch.randint(0, 256, (T + 1, B, 4, 84, 84), dtype=torch.uint8, generator=generator),
        "action": torch.randint(0, 6, (T + 1, B), generator=generator),
        "reward": torch.randn(T + 1, B, generator=generator),
        "value": torch.randn(T + 1, B, generator=generator) * 0.1,
        "logp": torch.full((T + 1, B), -1.8),
        "first": first,
        "terminated": first.roll(-1, 0),
    }


@pytest.mark.parametrize("network", ["nature", "a3c", "ga3c_large2", "impala", "accel"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_say_what_they_say_on_a_cpu(network, precision):
    """Acting and unrolling agree with each other and with float32 on a CPU; gradients point the same way."""
    torch.manual_seed(0)
    near = set_precision(factory.make(network, SPEC, core="lstm", core_size=32, previous=True), "float32")
    far = factory.make(network, SPEC, core="lstm", core_size=32, previous=True)
    far.load_state_dict(near.state_dict())
    set_precision(far.to(GPU), precision)
    batch, close = _rows(4, 3), 0.01 if precision == "float32" else 0.08
    vectors, outs = [], []
    for policy, where in ((near, CPU), (far, GPU)):
        vector, rollout = FlatParams(policy), device.to_device(batch, where)
        out = policy.unroll(rollout, policy.initial(3))
        losses.VTrace()(out, rollout, Hyperparameters(entropy_cost=0.01)).loss.backward()
        vectors.append(vector.grad.cpu())
        outs.append({k: v.detach().cpu() for k, v in out.items()})
    for k in ("logp", "value", "entropy"):
        assert torch.allclose(outs[0][k], outs[1][k], atol=close), k
    assert torch.cosine_similarity(*vectors, dim=0) > (0.999 if precision == "float32" else 0.95)
    state, said = actor.player_from_cpu(far, GPU).initial(3), []
    far.cache_weights()
    for t in range(5):
        step = {k: batch[k][t] for k in ("obs", "reward", "first")} | {"noise": torch.rand(3, 1)}
        with torch.no_grad():
            out, state = actor.player_from_cpu(far, GPU).act(step, state)
        state["action"] = batch["action"][t]  # that is what was done there
        said.append(out["value"])
    assert torch.allclose(torch.stack(said), outs[1]["value"], atol=close)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_tapes_give_the_gradients_that_autograd_gives(precision):
    torch.manual_seed(1)
    policy = set_precision(factory.make("nature", SPEC).to(GPU), precision)
    vector, batch = FlatParams(policy), device.to_device(_rows(3, 4), GPU)
    found = []
    for kept in (False, True):
        tapes: list = [[] for _ in range(3)]
        with torch.no_grad():
            for t, tape in enumerate(tapes):
                policy.act({k: batch[k][t] for k in ("obs", "reward", "first")}, {}, tape)
        given = SimpleNamespace(unroll=partial(policy.unroll, tape=join_tapes(tapes))) if kept else policy
        vector.zero_grad()
        losses.A2C(recalls=True)(given, None, batch, {}, {"entropy_cost": 0.01}).loss.backward()
        found.append(vector.grad.clone())
    assert torch.cosine_similarity(*found, dim=0) > (0.9999 if precision == "float32" else 0.99)
    assert found[0].norm() > 1e-4


def test_an_update_waits_for_two_numbers_alone():
    """Forward, loss, backward and the optimizer ask the GPU and don't wait for it."""
    policy = set_precision(factory.make("nature", SPEC, core="lstm", core_size=16).to(GPU), "bfloat16")
    vector, batch = FlatParams(policy), device.to_device(_rows(4, 4), GPU)
    optimizer = OptimizerSpec("adam").make(vector.parameter)
    state, hyper = policy.initial(4), {"entropy_cost": 0.01}

    def update() -> losses.LossOutput:
        vector.zero_grad()
        scored = losses.VTrace()(policy, None, batch, state, hyper)
        scored.loss.backward()
        optimizer.step()
        return scored

    update()  # the first one makes what it needs
    torch.cuda.set_sync_debug_mode("error")
    try:
        scored = update()
        step = {k: batch[k][0] for k in ("obs", "reward", "first")} | {"noise": torch.rand(4, 1, device=GPU)}
        with torch.no_grad():
            policy.act(step, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.isfinite(float(scored.loss))


@pytest.mark.filterwarnings("error:acting stays eager")
@pytest.mark.parametrize("name", ["ppo", "ppo lstm", "impala gru", "dqn", "rainbow", "r2d2"])
def test_an_update_by_a_graph_is_the_one_without(name, tmp_path, monkeypatch):
    """With hyperparameters, targets, noise, weights of importance that change. Replicas act by graphs too."""
    for run in compared(name.split()[0], monkeypatch, tmp_path / "run", 1e-4, **{**LEARNERS[name], "device": "cuda"}):
        assert not run.over
        assert run.served > 20


@pytest.mark.filterwarnings("error:acting stays eager")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_acting_by_a_graph_is_acting(precision):
    torch.manual_seed(3)
    policy = set_precision(factory.make("nature", SPEC, core="lstm", core_size=32, previous=True).to(GPU), precision)
    vector, batch = FlatParams(policy), _rows(12, 3)
    plain, captured = actor.PlayerOnDevice(policy, GPU), actor.CapturedPlayer(policy, GPU)
    state = plain.initial(3)
    for t in range(12):
        vector.flat.mul_(1.001)  # weights change where they are
        policy.cache_weights()
        step = {k: batch[k][t] for k in ("obs", "reward", "first")} | {"noise": torch.rand(3, 1)}
        with torch.no_grad():
            (one, after), (other, behind) = plain.act(step, state), captured.act(step, state)
        for k in ("logp", "value"):
            assert torch.allclose(one[k], other[k], atol=1e-4 if precision == "float32" else 1e-2), k
        for k in ("h", "c"):
            assert torch.allclose(after[k], behind[k], atol=1e-4 if precision == "float32" else 1e-2), k
        state = after
    assert len(captured.calls) == 1


@pytest.mark.parametrize("name", optimizers.NAMES)
def test_optimizers_step_as_on_a_cpu(name):
    found = []
    for where in (CPU, GPU):
        torch.manual_seed(2)
        vector = FlatParams(torch.nn.Linear(100, 100).to(where))
        optimizer = OptimizerSpec(name, eps=1e-3).make(vector.parameter, 1e-2)
        for k in range(5):
            vector.grad.copy_(torch.sin(torch.arange(vector.weights) * (k + 1.0)))
            clip_gradient(vector.grad, 0.5)
            optimizer.step()
        found.append(vector.read().copy())
    assert np.allclose(*found, rtol=1e-4, atol=1e-6)


def test_page_locked_slots_arrive_whole():
    rows_, state = row_spec(SPEC.obs, {"value": Field((), "float32")}), {"h": Field((8,), "float32")}
    queue = RolloutQueue(rows_, state, 20, 16, 4)
    assert device.page_lock(SharedBlock(10_000), GPU), "cudaHostRegister works here"
    columns, own = learner.collator_for(queue, 2, GPU), Collator(queue.rows, queue.state, 16, 2)
    rng = np.random.default_rng(0)
    for slots in ([0, 1], [2, 3], [3, 0]):
        for slot in slots:
            queue.rows["obs"][slot] = rng.integers(0, 256, queue.rows["obs"][slot].shape, np.uint8)
        got, _ = columns(slots)
        columns.done()
        want, _ = own(slots)
        queue.rows["obs"][slots] = 0  # the slots are theirs again who fill them
        assert torch.equal(got["obs"].cpu(), torch.from_numpy(want["obs"]))


def test_published_weights_are_the_gpus():
    vector = FlatParams(factory.make("nature", SPEC).to(GPU))
    params, other = Params(vector.size), FlatParams(factory.make("nature", SPEC))
    for version in range(3):
        vector.flat.add_(1.0)
        params.publish(vector, version, version)
        assert params.pull(other) == version
        assert torch.equal(other.flat, vector.flat.cpu())


def test_fetch_keeps_every_bit():
    batch = {"a": torch.randn(7, 3), "b": torch.arange(7), "c": torch.rand(7) > 0.5, "d": torch.randn(7).bfloat16()}
    back = device.fetch_outputs(device.to_device(batch, GPU))
    for (path, want), (_, got) in zip(tree.leaves(batch), tree.leaves(back), strict=True):
        assert torch.equal(want, got), path


def test_replicas_stay_equal(tmp_path, monkeypatch):
    from polyplay.learning import learner as learning

    made = []
    real = learning.Learner.__init__
    monkeypatch.setattr(learning.Learner, "__init__", lambda self, *a: (real(self, *a), made.append(self))[0])
    settings = {**NET, **A2C, "replicas": 2, "steps": 4_000, "serial": True}
    polyplay.train("a2c", run=str(tmp_path / "run"), **settings)
    one, other = (learner.update.vector.flat for learner in made)
    assert one.device == GPU
    assert torch.equal(one, other)


def test_auto_is_the_gpu_and_bfloat16(tmp_path, capsys):
    assert device.choose_devices("auto")[0] == "cuda:0"
    assert is_half("auto", "cuda")
    polyplay.train("a2c", **{**NET, **A2C, "device": "auto", "run": str(tmp_path / "run"), "steps": 2_000})
    assert torch.cuda.get_device_name(0) in capsys.readouterr().out


@pytest.mark.parametrize("name", LEARN)
def test_catch_is_learnt(name, tmp_path):
    system, settings = LEARN[name]
    run = polyplay.train(system, run=str(tmp_path / "run"), until_return=0.5, **{**NET, **settings})
    assert run.exit_code == 0
    assert run.summary["episodic_return_mean_best"] >= 0.5  # random play: -0.6


@pytest.mark.parametrize(
    ("system", "ways"), [("a2c", ("cuda", "cpu")), ("ppo", ("cpu", "cuda")), ("impala", ("cuda", "cpu"))]
)
def test_a_checkpoint_of_one_goes_on_on_the_other(system, ways, tmp_path):
    own = {"a2c": {**A2C, "replicas": 1}, "ppo": {**PPO, "replicas": 1}, "impala": IMPALA}[system]
    settings = {**NET, **own, "serial": True, "trace": True, "steps": 3_000}
    polyplay.train(system, run=str(tmp_path / "run"), **{**settings, "device": ways[0]})
    before = len(rows(tmp_path / "run" / "updates.jsonl"))
    kept = checkpoint.open_checkpoint(checkpoint.newest(tmp_path / "run", print)).arrays("agents/0/policy")
    more = polyplay.resume(str(tmp_path / "run"), steps=6_000, device=ways[1])
    assert more.summary["updates"] > before
    after = checkpoint.open_checkpoint(checkpoint.newest(tmp_path / "run", print)).arrays("agents/0/policy")
    far = {k: float(np.abs(after[k] - kept[k]).max()) for k in kept}
    assert 0.0 < max(far.values()) < 1.0  # it went on from there
