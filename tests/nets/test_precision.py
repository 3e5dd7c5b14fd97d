"""polyplay/nets/device.py: what bfloat16 changes, what it leaves alone, and what is refused."""

from __future__ import annotations

import pytest
import torch

import polyplay
from polyplay.core.errors import UserError
from polyplay.nets import device, factory, onnx
from polyplay.runs import load
from polyplay.runs.options import RunOptions
from tests.nets.helpers import arrivals, discrete, image, observations, play, vector

SPEC = discrete(image())


def pair(name: str = "a3c", spec=SPEC, **options):
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


@pytest.mark.parametrize("name", ["a3c", "ga3c", "nature"])
@pytest.mark.parametrize("inputs", ["raw", "centre"])
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


def test_acting_and_unrolling_agree_and_weights_stay_float32():
    _, policy = pair("ga3c", core="lstm")
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    rows = arrivals(SPEC.obs, 3, 8, policy.noise)
    said, after = play(policy, rows, policy.initial(8))
    with torch.no_grad():
        again = policy.unroll({**rows, "action": said["action"]}, policy.initial(8))
    assert {x.dtype for x in after.values()} == {torch.float32}
    torch.testing.assert_close(again["logp"], said["logp"], atol=2e-3, rtol=0)
    torch.testing.assert_close(again["value"], said["value"], atol=5e-3, rtol=0)


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
    assert load.crew_of(RunOptions(precision="auto", device="cpu")).precision == said
    assert device.choose_precision("bfloat16") == "bfloat16"


def test_a_product_is_timed_in_both_precisions():
    assert all(0.0 < device._product(dtype) < 10.0 for dtype in (torch.float32, torch.bfloat16))


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="precision: 'fp16' given, allowed: float32, bfloat16, auto"):
        polyplay.train("a2c", env="toy:catch", precision="fp16")
    own = torch.nn.Linear(2, 2)
    assert device.set_precision(own, "auto") is own
    with pytest.raises(UserError, match="--precision bfloat16: this --network is a whole policy"):
        device.set_precision(own, "bfloat16")


def test_an_exported_file_computes_in_float32(tmp_path):
    spec = discrete(vector(5))
    policy = pair("mlp", spec)[1]
    told = onnx.export_onnx(policy, spec, tmp_path / "policy.onnx", {})
    assert "100 % of actions are the same" in told["checked"]
    assert not policy.bf16


def test_a_run_learns_in_bfloat16(tmp_path):
    settings = {"network": "mlp", "optimizer": "adam", "learning_rate": 3e-3, "unroll": 9, "anneal": "constant"}
    settings |= {"precision": "bfloat16", "replicas": 1, "serial": True, "tensorboard": False}
    run = polyplay.train("a2c", env="toy:catch", steps=60_000, until_return=0.5, run=str(tmp_path / "run"), **settings)
    assert run.summary["episodic_return_mean_best"] >= 0.5  # random play: -0.6


def test_held_weights_say_the_same_until_they_change():
    _, policy = pair("a3c")
    rows = arrivals(SPEC.obs, 1, 8, policy.noise)
    row = {k: v[0] for k, v in rows.items()}

    def value():
        with torch.no_grad():
            return policy.act(row, {})[0]["value"]

    fresh = value()
    policy.hold()
    assert torch.equal(value(), fresh)
    with torch.no_grad():
        policy.torso.fc.weight.mul_(2.0)
    assert torch.equal(value(), fresh), "old until told"
    policy.hold()
    assert not torch.equal(value(), fresh)
    held = value()
    policy.torso.fc.half_weight = None
    assert torch.equal(value(), held)


def test_only_acting_uses_held_weights():
    _, policy = pair("a3c")
    rows = {**arrivals(SPEC.obs, 2, 4, policy.noise), "action": torch.zeros(2, 4, dtype=torch.int64)}
    policy.hold()
    with torch.no_grad():
        policy.torso.fc.weight.mul_(2.0)
    _, with_old = scored(policy, rows)
    policy.hold()
    _, with_new = scored(policy, rows)
    assert torch.equal(with_old, with_new)
