"""SAC's and TD3's weights are those of plain loops: a network each, an optimizer each, nothing shared or stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyplay
from polyplay.core import checkpoint
from polyplay.learning.learner import Runner

UPDATES = 1_000
SETTINGS: Any = {
    "env": "Pendulum-v1", "network": "mlp(16,16)", "batch": 32, "ratio": 32.0, "learning_starts": 50,
    "learning_rate": 3e-4, "critic_rate": 3.0, "steps": 50 + UPDATES, "serial": True, "tensorboard": False,
}  # fmt: skip
LOW, HIGH, GAMMA, TAU = -2.0, 2.0, 0.99, 0.005


class Plain:
    """Networks of layers [n, inputs, outputs] and [n, 1, outputs], as nn.Linear of their own."""

    def __init__(self, given: dict[str, np.ndarray]):
        count = 1 + max(int(key.split(".")[2]) for key in given if key.startswith("critics.weights"))
        self.actor = self.mlp(given, "actor", 0, count)
        self.critics = [self.mlp(given, "critics", j, count) for j in range(len(given["critics.weights.0"]))]
        self.log_alpha = nn.Parameter(torch.tensor(given.get("log_alpha", [0.0])))

    @staticmethod
    def mlp(given: dict[str, np.ndarray], part: str, j: int, count: int) -> nn.Sequential:
        layers = list[nn.Module]()
        for i in range(count):
            weight, bias = (torch.tensor(given[f"{part}.{kind}.{i}"][j]) for kind in ("weights", "biases"))
            linear = nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = weight.T.clone(), bias[0].clone()
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def q(self, obs: Tensor, y: Tensor) -> Tensor:
        return torch.stack([net(torch.cat([obs, y], 1))[:, 0] for net in self.critics])

    def sample(self, obs: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp())
        u = mean + normal.scale * z
        return u.tanh(), (normal.log_prob(u) - torch.log(1.0 - u.tanh().square() + 1e-12)).sum(1)

    def vector(self) -> np.ndarray:
        """All weights, actor first."""
        nets = [self.actor, *self.critics]
        return np.concatenate([p.detach().numpy().ravel() for net in nets for p in net.parameters()])


def adam(parts: list[nn.Module], rate: float) -> torch.optim.Adam:
    return torch.optim.Adam([p for part in parts for p in part.parameters()], rate)


def critics_step(net: Plain, goal: Tensor, batch: Any, y: Tensor, optim: torch.optim.Optimizer) -> None:
    optim.zero_grad()
    (0.5 * (net.q(batch["obs"][0], y) - goal).square()).mean(1).sum().backward()
    optim.step()


def sac(net: Plain, target: Plain, batches: list[Any]) -> None:
    """The actor's gradient is of the critics as they were before their step."""
    rate = SETTINGS["learning_rate"]
    optim = adam(net.critics, 3.0 * rate), adam([net.actor], rate), torch.optim.Adam([net.log_alpha], rate)
    for batch in batches:
        (now, then), y, alpha = batch["obs"], batch["action"] / HIGH, net.log_alpha.exp().detach()
        with torch.no_grad():
            after, logp = net.sample(then, batch["z_then"])
            goal = batch["return"] + batch["discount"] * (target.q(then, after).amin(0) - alpha * logp)
        chosen, logp = net.sample(now, batch["z"])
        optim[1].zero_grad()
        (alpha * logp - net.q(now, chosen).amin(0)).mean().backward()
        optim[2].zero_grad()
        (-net.log_alpha * (logp.detach().mean() - 1.0)).sum().backward()
        critics_step(net, goal, batch, y, optim[0])
        for other in optim[1:]:
            other.step()
        move(net, target)


def td3(net: Plain, target: Plain, batches: list[Any]) -> None:
    rate = SETTINGS["learning_rate"]
    critics, actor = adam(net.critics, 3.0 * rate), adam([net.actor], rate)
    for k, batch in enumerate(batches):
        now, then = batch["obs"]
        with torch.no_grad():
            noise = (0.2 * batch["z"]).clamp(-0.5, 0.5)
            after = (target.actor(then).tanh() + noise).clamp(-1.0, 1.0)
            goal = batch["return"] + batch["discount"] * target.q(then, after).amin(0)
        actor.zero_grad()
        (-net.q(now, net.actor(now).tanh())[0]).mean().backward()
        critics_step(net, goal, batch, batch["action"] / HIGH, critics)
        if k % 2:
            actor.step()
            move(net, target)


def move(net: Plain, target: Plain) -> None:
    for to, own in zip([target.actor, *target.critics], [net.actor, *net.critics], strict=True):
        for a, b in zip(to.parameters(), own.parameters(), strict=True):
            a.data.lerp_(b.data, TAU)


@pytest.mark.parametrize(("system", "plain"), [("sac", sac), pytest.param("td3", td3, marks=pytest.mark.long)])
def test_after_a_thousand_updates_weights_are_those_of_a_plain_loop(system, plain, tmp_path, monkeypatch):
    batches, first, noise = list[Any](), list[dict[str, np.ndarray]](), Runner.with_noise

    def seen(run: Any, batch: Any, version: int) -> Any:
        if not first:
            first.extend({k: x.numpy().copy() for k, x in net.state_dict().items()} for net in (run.policy, run.target))
        found = noise(run, batch, version)
        batches.append({k: torch.as_tensor(x).clone() for k, x in found.items() if k != "version"})
        return found

    monkeypatch.setattr(Runner, "with_noise", seen)
    run = polyplay.train(system, run=str(tmp_path / "run"), seed=3, **SETTINGS)
    found = checkpoint.open_checkpoint(checkpoint.newest(run.directory, print))
    ours = Plain(found.arrays("agents/0/policy"))
    net, target = (Plain(weights) for weights in first)
    begun = net.vector()
    plain(net, target, batches)
    assert len(batches) == UPDATES
    far = np.linalg.norm(net.vector() - ours.vector()) / np.linalg.norm(net.vector() - begun)
    assert far < 1e-5
    assert np.linalg.norm(net.vector() - begun) > 0.1 * np.linalg.norm(begun), "they moved"
