"""AlphaGo Zero's network: its layers, its two ways to normalize, and its weights as one vector."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from polyplay.core.errors import UserError
from polyplay.envs import Envs
from polyplay.nets.factory import count_parameters
from polyplay.nets.residual import BoardNetworkFactory, DualResidualNetwork, FoldedNetwork
from tests.nets.helpers import continuous, discrete, image, vector

FOUR = Envs("game:connect_four", 1).spec


def network(blocks: int = 2, filters: int = 8, hidden: int = 16) -> DualResidualNetwork:
    """One whose statistics are no longer those of the start."""
    net = BoardNetworkFactory(FOUR, blocks, filters, hidden)()
    for _ in range(3):
        net.unroll({"obs": planes(4, 8)}, {})
    return net


def planes(*lead: int) -> torch.Tensor:
    return torch.randint(0, 2, (*lead, 3, 6, 7)).float()


class Plain(nn.Module):
    """The same network of torch's own layers, as the paper's figures draw it."""

    def __init__(self, net: DualResidualNetwork):
        super().__init__()
        convs = [net.stem, *net.tower, net.policy, net.value]
        self.convs = nn.ModuleList(
            nn.Sequential(copy.deepcopy(c.conv), nn.BatchNorm2d(c.conv.out_channels)) for c in convs
        )
        for (_, norm), conv in zip(self.convs, convs, strict=True):
            norm.weight.data.copy_(conv.scale.data)
            norm.bias.data.copy_(conv.shift.data)
            norm.running_mean.copy_(conv.mean)
            norm.running_var.copy_(conv.variance)
        self.logits, self.hidden, self.output = (copy.deepcopy(x) for x in (net.logits, net.hidden, net.output))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stem, *tower, policy, value = self.convs
        x = torch.relu(stem(x))
        while tower:
            first, second, *tower = tower
            x = torch.relu(x + second(torch.relu(first(x))))
        p, v = torch.relu(policy(x)).flatten(1), torch.relu(value(x)).flatten(1)
        return self.logits(p), torch.tanh(self.output(torch.relu(self.hidden(v)))).squeeze(1)


def test_it_is_the_papers_network_in_both_ways():
    net, obs = network(), planes(2, 16)
    plain = Plain(net)
    for mine, theirs in zip(net.predict(obs[0]), plain.eval()(obs[0]), strict=True):
        torch.testing.assert_close(mine, theirs)
    out = net.unroll({"obs": obs}, {})
    logits, value = plain.train()(obs.flatten(0, 1))
    torch.testing.assert_close(out["logits"], logits.view(2, 16, 7))
    torch.testing.assert_close(out["value"], value.view(2, 16))
    for mine, theirs in zip(net.predict(obs[0]), plain.eval()(obs[0]), strict=True):
        torch.testing.assert_close(mine, theirs, msg="the running statistics moved alike")


def test_the_published_size():
    """19 blocks of 256 filters on 19×19 with 17 planes: about 22.8 million weights by the layers' sizes."""
    conv = 9 * 256 * 256
    tower = 9 * 17 * 256 + 38 * conv + 2 * 39 * 256
    heads = (256 * 2 + 4) + (2 * 361 * 362 + 362) + (256 + 2) + (361 * 256 + 256) + 257
    factory = BoardNetworkFactory(discrete(image(17, 19)._replace(dtype="float32"), 362))
    assert count_parameters(factory) == tower + heads


def test_learning_without_a_gradient_and_a_call_without_a_way_are_errors():
    net = network()
    before = [b.clone() for b in net.buffers()]
    assert not any(x.requires_grad for x in net.predict(planes(8)))
    with torch.no_grad(), pytest.raises(RuntimeError, match="unroll is for learning, but gradients are off"):
        net.unroll({"obs": planes(1, 8)}, {})
    with pytest.raises(NotImplementedError):
        net(planes(8))
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


def test_the_legal_move_of_the_greatest_logit():
    net, obs = network(), planes(9)
    logits, _ = net.predict(obs)
    mask = torch.ones(9, 7, dtype=torch.bool)
    assert torch.equal(net.act({"obs": obs}, {})[0]["action"], logits.argmax(1))
    mask[torch.arange(9), logits.argmax(1)] = False
    out, state = net.act({"obs": obs, "mask": mask}, {})
    assert torch.equal(out["action"], logits.topk(2, 1).indices[:, 1])
    assert state == {}


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_folding_is_the_network_that_acts(dtype: torch.dtype, most: float):
    net, obs = network(3).to(dtype), planes(33).to(dtype)
    folded = FoldedNetwork(net, dtype)
    for mine, theirs in zip(folded(obs), net.predict(obs), strict=True):
        assert mine.dtype == dtype
        assert float((mine - theirs).abs().max()) < most
    net.to(torch.float32).unroll({"obs": planes(1, 8)}, {})
    net.to(dtype)
    folded.take(net)
    for mine, theirs in zip(folded(obs), net.predict(obs), strict=True):
        assert float((mine - theirs).abs().max()) < most, "after newer weights came"
    if dtype == torch.float32:
        for half, theirs in zip(FoldedNetwork(net, torch.bfloat16)(obs), net.predict(obs), strict=True):
            assert half.dtype == torch.float32
            assert 0 < float((half - theirs).abs().max()) < 0.05


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (discrete(vector(4)), "take game:NAME"),
        (discrete(image()), "take game:NAME"),
        (continuous(FOUR.obs, 2), "a board's are Discrete"),
    ],
)
def test_mistakes(spec, says):
    with pytest.raises(UserError) as raised:
        BoardNetworkFactory(spec)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
