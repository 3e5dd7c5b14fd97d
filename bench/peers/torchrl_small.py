"""TorchRL's PPO, A2C or DQN on an environment of vectors until it is stopped.

    python bench/peers/torchrl_small.py --algo ppo --env HalfCheetah-v5 --n-steps 256 --epochs 10 --batch 64

Environments, collector, buffer, advantages, losses and target updater are TorchRL's, put together as its
sota-implementations/ppo, a2c and dqn: advantages again in every pass, rows drawn without replacement, Adam. 64-64 tanh
for the policy and as many for the value; DQN's 128-128 ReLU. With --normalize 1 its VecNormV2 scales observations and
rewards. --compile 1 compiles the collector's policy and the whole update by torch.compile, as there. Its collector sets
torch to one thread, which is undone. Knows nothing of Polyplay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from logs import Log, small_command_line
from networks import count
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl import collectors
from torchrl.data import Composite, LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    ExplorationType,
    GymEnv,
    ParallelEnv,
    SerialEnv,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import MLP, EGreedyModule, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, DQNLoss, HardUpdate
from torchrl.objectives.value import GAE

VECTORS = {"serial": SerialEnv, "parallel": ParallelEnv}


def one(asked: argparse.Namespace) -> GymEnv:
    return GymEnv(asked.env, categorical_action_encoding=True, device="cpu")


def make(asked: argparse.Namespace) -> Any:
    envs = VECTORS[asked.vec](asked.n_envs, partial(one, asked))
    if not asked.normalize:
        return envs
    scale = VecNormV2(in_keys=["observation", "reward"], reduce_batch_dims=True)
    return TransformedEnv(envs, Compose(scale, DoubleToFloat(in_keys=["observation"])))


def layers(inputs: int, outputs: int, width: int, activation: type[nn.Module]) -> MLP:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[width, width], activation_class=activation)


def actor_critic(env: GymEnv) -> tuple[Any, Any]:
    seen, spec = env.observation_spec["observation"].shape[-1], env.action_spec
    critic = ValueOperator(layers(seen, 1, 64, nn.Tanh), in_keys=["observation"])
    given: dict[str, Any] = {"return_log_prob": True, "default_interaction_type": ExplorationType.RANDOM}
    if hasattr(spec.space, "n"):
        net = TensorDictModule(layers(seen, spec.space.n, 64, nn.Tanh), ["observation"], ["logits"])
        kind: Any = torch.distributions.Categorical
        return ProbabilisticActor(net, spec=spec, in_keys=["logits"], distribution_class=kind, **given), critic
    actions = spec.shape[-1]
    both = nn.Sequential(layers(seen, actions, 64, nn.Tanh), AddStateIndependentNormalScale(actions))
    net = TensorDictModule(both, ["observation"], ["loc", "scale"])
    bounds = {"low": spec.space.low, "high": spec.space.high, "tanh_loc": False}
    actor = ProbabilisticActor(
        net, spec=spec, in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs=bounds, **given
    )
    return actor, critic


def collector(asked: argparse.Namespace, policy: Any, frames: int) -> Any:
    collect = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
    more = {"compile_policy": {"warmup": 1}} if asked.compile else {}
    made = collect(partial(make, asked), policy, frames_per_batch=frames, total_frames=-1, device="cpu", **more)
    torch.set_num_threads(asked.threads)
    return made


def faster(work: Callable[..., Any], asked: argparse.Namespace) -> Callable[..., Any]:
    return torch.compile(work) if asked.compile else work


def policy_gradient(asked: argparse.Namespace) -> None:
    clipped = asked.algo == "ppo"
    actor, critic = actor_critic(one(asked))
    print(f"{count(actor) + count(critic)} parameters", flush=True)
    n = asked.n_envs * asked.n_steps
    size, epochs = (min(asked.batch, n), asked.epochs) if clipped else (n, 1)
    acting = collector(asked, actor, n)
    estimate = GAE(gamma=asked.gamma, lmbda=asked.lam if clipped else 1.0, value_network=critic, average_gae=False)
    given: dict[str, Any] = {"actor_network": actor, "critic_network": critic, "loss_critic_type": "l2"}
    given |= {"entropy_coeff": 0.0, "critic_coeff": 0.5}
    loss = ClipPPOLoss(clip_epsilon=0.2, normalize_advantage=True, **given) if clipped else A2CLoss(**given)
    rate = 3e-4 if clipped else 7e-4
    optim = torch.optim.Adam(loss.parameters(), torch.tensor(rate) if asked.compile else rate, eps=1e-5)
    sampler = SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), sampler=sampler, batch_size=size)

    def update(rows: TensorDict) -> Any:
        optim.zero_grad()
        found = loss(rows)
        sum(found[k] for k in ("loss_objective", "loss_critic")).backward()  # the entropy's weight is 0
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
        optim.step()
        return found.detach()

    update, log, steps = faster(update, asked), Log(asked.log), 0
    for rows in acting:
        for _ in range(epochs):
            with torch.no_grad():
                estimate(rows)
            buffer.extend(rows.reshape(-1))
            for part in buffer:
                update(part)
        steps += n
        if log.due():
            log.write(steps=steps)
        acting.update_policy_weights_()


def q_learning(asked: argparse.Namespace) -> None:
    env = one(asked)
    net = layers(env.observation_spec["observation"].shape[-1], env.action_spec.space.n, 128, nn.ReLU)
    actor = QValueActor(net, spec=Composite(action=env.action_spec), in_keys=["observation"])
    print(f"{count(actor)} parameters", flush=True)
    dice = EGreedyModule(env.action_spec, eps_init=0.05, eps_end=0.05, annealing_num_steps=1)
    acting = collector(asked, TensorDictSequential(actor, dice), asked.frames)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(asked.capacity), batch_size=asked.batch)
    loss = DQNLoss(actor, loss_function="l2", delay_value=True)
    loss.make_value_estimator(gamma=asked.gamma)
    target = HardUpdate(loss, value_network_update_interval=1_000 // asked.every)
    optim = torch.optim.Adam(loss.parameters(), torch.tensor(5e-4) if asked.compile else 5e-4)

    def update(rows: TensorDict) -> Any:
        optim.zero_grad()
        error = loss(rows)["loss"]
        error.backward()
        optim.step()
        return error.detach()

    update, log, steps, updates = faster(update, asked), Log(asked.log), 0, 0
    for rows in acting:
        buffer.extend(rows.reshape(-1))
        steps += asked.frames
        while updates < (steps - asked.start) // asked.every:
            update(buffer.sample())
            target.step()
            updates += 1
        if log.due():
            log.write(steps=max(0, steps - asked.start), updates=updates)
        acting.update_policy_weights_()


def main() -> None:
    parser = small_command_line(__doc__)
    parser.add_argument("--vec", choices=VECTORS, default="serial")
    parser.add_argument("--frames", type=int, default=64, help="of DQN: agent steps collected at once")
    parser.add_argument("--compile", type=int, choices=(0, 1), default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    (q_learning if asked.algo == "dqn" else policy_gradient)(asked)


if __name__ == "__main__":
    main()
