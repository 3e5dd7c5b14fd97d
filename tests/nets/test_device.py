"""Numbers to a device and back, batches put together there, on a device that is pretended (tests/pretend.py)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from polyplay.acting import rows
from polyplay.buffers.rollout_queue import Collator, RolloutQueue, row_spec
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Field
from polyplay.envs import Discrete, EnvSpec
from polyplay.learning import learner
from polyplay.nets import device, factory
from polyplay.systems import load
from polyplay.weights.params import FlatParams, Params
from polyplay.workers.crew import Crew
from polyplay.workers.role import Placement
from tests.pretend import CUDA, WAITS, Far, pretended

CPU = torch.device("cpu")
SPEC = EnvSpec(obs={"a": Field((3,), "uint8"), "b": Field((), "float32")}, action=Discrete(3))


@pytest.fixture
def gpu(monkeypatch):
    with pretended(monkeypatch) as mode:
        yield mode


def test_what_device_stands_for(monkeypatch):
    monkeypatch.setattr(device, "available", lambda: 0)
    assert device.choose_devices("auto") == device.choose_devices("cpu") == ("cpu",)
    with pytest.raises(UserError, match=r"--device: cuda given, but torch .* allowed here: auto, cpu"):
        device.choose_devices("cuda")
    monkeypatch.setattr(device, "available", lambda: 2)
    assert device.choose_devices("auto") == device.choose_devices("cuda") == ("cuda:0", "cuda:1")
    assert device.choose_devices("cpu") == ("cpu",)
    assert Placement("auto").parts == 2
    assert Placement("cpu").devices == ("cpu",)


def test_a3c_has_nothing_for_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "available", lambda: 1)
    page, crew = load("a3c"), Crew(where=Placement("auto"), steps=100)
    page.build(page.Config(env="toy:catch", network="mlp", workers=2), crew)
    assert crew.where.devices == ("cpu",)
    with pytest.raises(UserError, match="--device: cuda given, but a3c's workers compute on the CPU alone"):
        page.build(page.Config(env="toy:catch", network="mlp"), Crew(where=Placement("cuda")))


def test_the_pretended_device_refuses_what_a_gpu_refuses(gpu):
    far, near = torch.zeros(3, device=CUDA), torch.ones(3)
    with pytest.raises(RuntimeError, match="expected all tensors on cuda:0"):
        far + near
    with pytest.raises(RuntimeError):
        far.numpy()
    with pytest.raises(RuntimeError, match="expected all tensors on cuda:0"):
        torch.cat([far, near])
    assert far[torch.tensor([1])].device == CUDA  # positions may be on the CPU
    assert float((far + 1.0).sum()) == 3.0
    assert WAITS["number"] == 1


def test_fetch_brings_trees_of_every_type_back_by_one_copy(gpu):
    batch = {
        "flag": torch.tensor([True, False, True]),
        "deep": {"action": torch.arange(6).view(3, 2), "byte": torch.arange(3, dtype=torch.uint8)},
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "real": torch.randn(5, 3).t(),
        "none": torch.zeros(3, 0),
    }
    there = device.to_device(batch, CUDA)
    WAITS.clear()
    back = device.fetch_outputs(there)
    assert WAITS == {"back": 1}
    assert list(back) == list(batch)
    for (path, want), (_, got) in zip(tree.leaves(batch), tree.leaves(back), strict=True):
        assert torch.equal(want, got), path
        assert want.dtype == got.dtype
    assert device.fetch_outputs({}) == {}


def test_single_numbers_come_by_one_copy(gpu):
    scalars = {"a": torch.tensor(1.5).to(CUDA), "b": torch.tensor(0.1), "c": torch.tensor(3).to(CUDA)}
    WAITS.clear()
    assert device.to_floats(scalars) == {"a": 1.5, "b": float(torch.tensor(0.1)), "c": 3.0}
    assert WAITS == {"back": 1}


def test_a_mirror_is_the_tensor_itself_on_a_cpu_and_a_copy_elsewhere(gpu):
    for where in (CPU, CUDA):
        tensor = torch.zeros(4, device=where)
        mirror = device.Mirror(tensor)
        tensor += 2.0
        assert mirror.fetch().tolist() == [2.0] * 4
        mirror.array[1] = 5.0
        mirror.put()
        assert tensor.tolist() == [2.0, 5.0, 2.0, 2.0]


def test_memory_is_locked_while_its_block_lives(monkeypatch):
    calls = []

    class Runtime:
        cudaHostRegister = staticmethod(lambda at, size, flags: calls.append(("lock", at, size)) or 0)
        cudaHostUnregister = staticmethod(lambda at: calls.append(("unlock", at)))

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime)
    block = SharedBlock(5000)
    at = block.array(5000, np.uint8).ctypes.data
    assert not device.page_lock(block, CPU)
    assert device.page_lock(block, CUDA)
    assert calls == [("lock", at, 5000)]
    del block
    assert calls[1:] == [("unlock", at)]


def test_memory_that_cannot_be_locked_is_only_slower(gpu, monkeypatch):
    class Runtime:
        cudaHostRegister = staticmethod(lambda at, size, flags: 801)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime)
    assert not device.page_lock(SharedBlock(100), CUDA)


def _stream(slots: int) -> RolloutQueue:
    queue = RolloutQueue(
        row_spec(SPEC.obs, {"value": Field((), "float32")}), {"h": Field((2,), "float32")}, 2, 3, slots
    )
    rng = np.random.default_rng(1)
    for _, x in [*tree.leaves(queue.rows), *tree.leaves(queue.state)]:
        x[...] = rng.integers(0, 2 if x.dtype == bool else 100, x.shape)
    return queue


@pytest.mark.parametrize("n", [1, 2, 3])
def test_columns_hold_what_the_streams_own_joiner_puts_together(gpu, n):
    queue = _stream(4)
    own = Collator(queue.rows, queue.state, 3, n)
    columns = learner.collator_for(queue, n, CUDA)
    assert type(learner.collator_for(queue, n, CPU)) is Collator
    for slots in ([2, 0, 3][:n], [1, 3, 0][:n]):
        (want, before), (got, state) = own(slots), columns(slots)
        assert all(isinstance(x, Far) for _, x in tree.leaves(got["obs"]))
        assert isinstance(got["version"], np.ndarray)
        for key, x in dict(tree.leaves(want)).items():
            assert np.array_equal(device.to_host(dict(tree.leaves(got))[key]), x), key
        assert np.array_equal(state["h"], before["h"])
    WAITS.clear()
    columns.done()
    assert WAITS == {"stream": 1}  # slots go back only after the device has read them


def test_a_policy_near_by_says_on_the_cpu_what_it_computes_elsewhere(gpu):
    policy = factory.make("mlp", SPEC, hidden=(8,), core="lstm", core_size=4, previous=True)
    step = {"obs": {"a": torch.randint(0, 255, (5, 3), dtype=torch.uint8), "b": torch.randn(5)}}
    step |= {"reward": torch.ones(5), "first": torch.arange(5) < 2, "noise": torch.rand(5, 1)}
    assert rows.policy_from_cpu(policy) is policy
    with torch.no_grad():
        want, after = policy.act(step, policy.initial(5))
        there = rows.policy_from_cpu(policy.to(CUDA))
        got, state = there.act(step, there.initial(5))
    assert there.noise == 1
    for a, b in ((want, got), (after, state)):
        assert list(a) == list(b)
        for (path, x), (_, y) in zip(tree.leaves(a), tree.leaves(b), strict=True):
            assert y.device == CPU
            assert torch.allclose(x, y, atol=1e-6), path


def test_published_weights_are_the_devices(gpu):
    net = factory.make("mlp", SPEC, hidden=(4,)).to(CUDA)
    vector = FlatParams(net)
    params = Params(vector.size)
    params.publish(vector, 3, 0)
    other = FlatParams(factory.make("mlp", SPEC, hidden=(4,)))
    assert params.pull(other) == 3
    assert np.array_equal(other.read(), vector.read())
    assert other.flat.abs().sum() > 0


def test_what_workers_are_forked_from_never_asks_for_a_gpu():
    code = """
import os, signal, torch
def asked(*_): raise SystemExit("asked")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = asked
import polyplay.workers.preload
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
