"""How many updates a second DQN's learner could make if it did nothing else: no environment, no replay, no acting.

    python bench/dqn_ceiling.py --threads 2 --seconds 10                            # one, in updates a second
    python bench/compare.py dqn-nature --peers PEERS                                # in turn with those who play

An update is the target network's forward pass of 32 next observations, the network's forward and backward pass of 32,
the error clipped as DQN's, and Adam in one fused pass. Observations are uint8, taken from a few batches that lie in
memory. Counted are 4 agent steps an update, as if they had been played.

--precision auto is bfloat16 where the processor multiplies such numbers itself, as everywhere in the library.
--net plain is Nature's network in plain PyTorch, --net ours what `dqn` itself learns with.
--processes 2: each makes updates of half the batch, their gradients are not averaged. --targets 8: what the plain one
gains by the target passes of 8 updates in one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parent / "peers"))

from logs import Log
from networks import QNetwork, count

from polyplay.core.tree import Field
from polyplay.envs.pool import EnvSpec
from polyplay.envs.spaces import Discrete
from polyplay.learning import value_losses
from polyplay.nets import factory
from polyplay.nets.device import is_half, set_precision
from polyplay.weights import optimizers
from polyplay.weights.params import FlatParams

BATCH, EVERY, ACTIONS = 32, 4, 6
KEPT = 64  # batches that lie in memory


class Plain:
    """The learner in plain PyTorch. `step()` is one update."""

    def __init__(self, asked: argparse.Namespace, batch: int):
        torch.manual_seed(asked.seed)
        self.half, self.last = is_half(asked.precision), asked.layout == "channels_last"
        layout: Any = torch.channels_last if self.last else torch.contiguous_format
        self.net, self.target = (QNetwork("nature", ACTIONS).to(memory_format=layout) for _ in range(2))
        self.optim = torch.optim.Adam(self.net.parameters(), 1e-4, fused=True)
        self.seen = torch.randint(0, 256, (KEPT, 2, batch, 4, 84, 84), dtype=torch.uint8)
        self.actions, self.rewards = torch.randint(0, ACTIONS, (KEPT, batch)), torch.randn(KEPT, batch).sign()
        self.ahead, self.number, self.aims = asked.targets, 0, list[Tensor]()

    def images(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.last else x

    def aim(self, which: list[int]) -> list[Tensor]:
        """Targets of some batches, by one pass of the target network."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            best = self.target(self.images(self.seen[which, 1].flatten(0, 1))).float().amax(1)
        return list((self.rewards[which].flatten() + 0.99 * best).chunk(len(which)))

    def step(self) -> None:
        if not self.aims:
            self.aims = self.aim([(self.number + i) % KEPT for i in range(self.ahead)])
        which = self.number % KEPT
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            said = self.net(self.images(self.seen[which, 0]))
        said = said.float().gather(1, self.actions[which, :, None]).squeeze(1)
        loss = F.smooth_l1_loss(said, self.aims.pop(0))
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.number += 1


class Ours:
    """The parts that `dqn` learns with: its networks, outputs, loss, one vector of weights, Adam."""

    def __init__(self, asked: argparse.Namespace, batch: int):
        torch.manual_seed(asked.seed)
        spec = EnvSpec(Field((4, 84, 84), "uint8"), Discrete(ACTIONS))
        self.net, self.target = (set_precision(factory.make_values("nature", spec), asked.precision) for _ in range(2))
        self.vector, self.loss = FlatParams(self.net), value_losses.QLoss("mean")
        self.optim = optimizers.OptimizerSpec("adam", eps=1e-8).make(self.vector.parameter, lr=1e-4)
        self.target.cache_weights()
        seen = torch.randint(0, 256, (KEPT, 2, batch, 4, 84, 84), dtype=torch.uint8)
        actions, rewards = torch.randint(0, ACTIONS, (KEPT, batch)), torch.randn(KEPT, batch).sign()
        each = {"discount": torch.full((batch,), 0.99), "weight": torch.ones(batch)}
        self.batches = [
            {"obs": s, "action": a, "return": r, **each} for s, a, r in zip(seen, actions, rewards, strict=True)
        ]
        self.number = 0

    def step(self) -> None:
        batch = self.batches[self.number % KEPT]
        loss = self.loss(self.net, self.target, batch, {}, {}).loss
        self.vector.zero_grad()
        loss.backward()
        self.optim.step()
        self.number += 1


def work(asked: argparse.Namespace, made: Any) -> None:
    """Updates for ever; `made` counts them."""
    torch.set_num_threads(asked.threads)
    learner = (Ours if asked.net == "ours" else Plain)(asked, BATCH // asked.processes)
    while True:
        learner.step()
        made.value += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--net", choices=("plain", "ours"), default="plain")
    parser.add_argument("--threads", type=int, default=2, help="torch.set_num_threads of each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--targets", type=int, default=1, help="updates whose target passes are one")
    parser.add_argument("--seconds", type=float, help="of updates: then stop, and say the rate of their second half")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for lines of counters")
    asked = parser.parse_args()
    print(f"{count(QNetwork('nature', ACTIONS))} parameters", flush=True)
    context = multiprocessing.get_context("spawn")
    made = [context.Value("L", 0, lock=False) for _ in range(asked.processes)]
    workers = [context.Process(target=work, args=(asked, m), daemon=True) for m in made]
    for w in workers:
        w.start()
    log, marks = Log(asked.log), list[tuple[float, float]]()
    while all(w.is_alive() for w in workers):
        time.sleep(0.5)
        updates = sum(m.value for m in made) / asked.processes
        log.write(steps=EVERY * updates, updates=updates)
        marks += [(log.last, updates)] if updates else []
        if asked.seconds and marks and log.last - marks[0][0] >= asked.seconds:
            (t0, u0), (t1, u1) = marks[len(marks) // 2], marks[-1]
            print(f"{(u1 - u0) / (t1 - t0):.1f} updates/s, {EVERY * (u1 - u0) / (t1 - t0):.0f} agent steps/s")
            break
    for w in workers:
        w.terminate()


if __name__ == "__main__":
    main()
