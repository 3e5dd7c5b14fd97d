"""Numbers to a device and back, batches put together there, on a device that is pretended (tests/pretend.py)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import polyplay
from polyplay.core import tree
from polyplay.core.errors import UserError
from polyplay.core.shared_memory import SharedBlock
from polyplay.core.tree import Field
from polyplay.envs import Discrete, EnvSpec
from polyplay.nets import device, factory
from polyplay.nets.policy import Policy
from polyplay.runs import load as precision_load
from polyplay.runs.options import RunOptions
from polyplay.systems import load
from polyplay.workers.crew import Crew
from polyplay.workers.role import Placement
from tests.nets.helpers import discrete, image, observations
from tests.pretend import CUDA, WAITS, pretended

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
    page, crew = load("a3c"), Crew(placement=Placement("auto"), steps=100)
    page.build(page.Config(env="toy:catch", network="mlp", workers=2), crew)
    assert crew.placement.devices == ("cpu",)
    with pytest.raises(UserError, match="--device cuda: a3c's workers compute on the CPU only"):
        page.build(page.Config(env="toy:catch", network="mlp"), Crew(placement=Placement("cuda")))


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
    monkeypatch.setattr(Runtime, "cudaHostRegister", staticmethod(lambda at, size, flags: 801))
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: torch.ones(1))
    assert not device.page_lock(SharedBlock(100), CUDA), "it is only slower"


def test_what_workers_are_forked_from_asks_for_no_gpu_and_has_no_compiler():
    """Nor do optimizers import torch's compiler, which takes a second and 70 MB."""
    code = """
import os, signal, sys, torch
def asked(*_): raise SystemExit("asked")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = asked
import polyplay.workers.preload
from polyplay.weights.optimizers import NAMES, OptimizerSpec, load_state, optimizer_state
for name in NAMES:
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    made = OptimizerSpec(name, eps=0.1).make(p, lr=0.1)
    made.step()
    load_state(made, optimizer_state(made))
sys.exit("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# polyplay/nets/device.py: what bfloat16 changes, what it leaves alone, and what is refused.

PRECISION_SPEC = discrete(image())


def pair(name: str = "a3c", spec=PRECISION_SPEC, **options):
    """The same weights in both precisions."""
    made = []
    for how in ("float32", "bfloat16"):
        torch.manual_seed(0)
        made.append(device.set_precision(factory.make(name, spec, **options), how))
    return made


def scored(policy, rows):
    policy.zero_grad()
    out = policy.unroll(rows, policy.initial(rows["first"].shape[1]))
    (out["logp"].square() + out["value"].square() - 0.1 * out["entropy"]).sum().backward()
    return out, torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize(("name", "inputs"), [("ga3c", "raw"), ("nature", "raw"), ("a3c", "center")])
def test_what_is_said_and_learnt_is_close(name, inputs):
    torch.manual_seed(1)
    rows = {"obs": observations(image(), 3, 4), "first": torch.zeros(3, 4, dtype=torch.bool)}
    rows |= {"action": torch.randint(6, (3, 4)), "reward": torch.zeros(3, 4)}
    (full, exact), (half, rounded) = (scored(p, rows) for p in pair(name, inputs=inputs, init="orthogonal"))
    for key in ("logp", "value", "entropy"):
        assert half[key].dtype == torch.float32
        scale = max(1.0, float(full[key].detach().abs().max()))
        assert 0.0 < float((half[key] - full[key]).abs().max()) <= 0.02 * scale, key
    assert rounded.dtype == torch.float32
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.999
    assert float(rounded.norm() / exact.norm()) == pytest.approx(1.0, abs=0.02)


def test_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch):
    for has, said in (({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False), ({}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has)
        assert device.is_half("auto") is said
        assert device.is_half("bfloat16")
        assert not device.is_half("float32")


@pytest.mark.parametrize(("half", "said"), [(1.6, "float32"), (0.5, "auto")])
def test_auto_is_float32_where_bfloat16_is_slower(monkeypatch, half, said):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(device, "_product", lambda dtype: half if dtype == torch.bfloat16 else 1.0)
    assert device.choose_precision("auto") == said
    assert precision_load.crew_of(RunOptions(precision="auto", device="cpu")).precision == said
    assert device.choose_precision("bfloat16") == "bfloat16"


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="precision: 'fp16' given, allowed: float32, bfloat16, auto"):
        polyplay.train("a2c", env="toy:catch", precision="fp16")
    own = Policy()
    assert device.set_precision(own, "auto") is own
    with pytest.raises(UserError, match="bfloat16 given, but Policy sets its own precision; remove --precision"):
        device.set_precision(own, "bfloat16")
