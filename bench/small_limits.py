"""What a system on a small network could do at most: its environments alone, or its updates alone, in agent steps/s.

    python bench/small_limits.py --part environments --env HalfCheetah-v5 --lanes 8
    python bench/small_limits.py --part updates --env CartPole-v1 --unroll 32 --epochs 20 --minibatches 1
    python bench/compare.py ppo-cartpole --peers PEERS                      # in turn with those who play

    python bench/small_limits.py --part products --system sac --width 256  # the matrix products of its update alone

environments: a process for each core steps its share of the lanes, one Gymnasium environment after the other, with
random actions; nobody waits for anybody. updates: a real run begins; once it has changed over to compiled updates
(--compile on waits for that), its learner only repeats the one that it has just made, in one thread. Counted are the
steps that so many updates are due for. products: a process for each core makes the matrix products of its share of
the rows of an update of SAC or TD3, and nothing else; an update per step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import gymnasium
import torch

sys.path.append(str(Path(__file__).resolve().parent / "peers"))

from logs import Log
from measure import keywords, wire

from polyplay.cli.main import main as main_of_polyplay
from polyplay.core.machine import cores
from polyplay.learning.learner import Learner

SETTLED = 3.0  # seconds after which a run's updates are what they will be, unless a compiler works
BURST = 0.25  # seconds


def play(env: str, lanes: int, seed: int, counter: Any) -> None:
    """Step these lanes for ever."""
    games = [gymnasium.make(env) for _ in range(lanes)]
    for i, game in enumerate(games):
        game.reset(seed=seed + i)
        game.action_space.seed(seed + i)
    drawn = [games[0].action_space.sample() for _ in range(1000)]
    turn = 0
    while True:
        for game in games:
            _, _, terminated, truncated, _ = game.step(drawn[turn % 1000])
            turn += 1
            if terminated or truncated:
                game.reset()
        counter.value += lanes


def environments(asked: argparse.Namespace) -> None:
    several = multiprocessing.get_context("fork")
    shares = [len(range(i, asked.lanes, cores())) for i in range(cores())]
    counters = [several.Value("q", 0, lock=False) for _ in filter(None, shares)]
    for i, counter in enumerate(counters):
        several.Process(target=play, args=(asked.env, shares[i], 1000 * i, counter), daemon=True).start()
    log = Log(asked.log)
    while True:
        time.sleep(BURST)
        log.write(steps=sum(counter.value for counter in counters))
        asked.log or print(sum(counter.value for counter in counters) / log.elapsed())


class Repeat:
    """Lets a run's learner make its updates until it changed over to compiled ones, then repeats one for ever: loss,
    gradient, its norm and the optimizer, from the same rows, with a learning rate of 0.
    """

    def __init__(self, log: Log, steps: float):
        """steps: that an update counts for."""
        self.log, self.steps, self.again = log, steps, None  # type: ignore[var-annotated]

    def watch(self, work: Learner) -> None:
        """Look at a learner whose gradient is about to be applied."""
        run: Any = work.run
        compiles = getattr(run, "call", True) is None and not run.over
        if self.again:
            self.loop(work)
        elif self.log.elapsed() > SETTLED and not compiles:
            work.run = cast("Any", Recorder(run, self))

    def loop(self, work: Learner) -> None:
        vector, made, written = work.run.vector, 0, self.log.elapsed()
        optimizer = work.spec.update.optim.make(vector.parameter)
        optimizer.param_groups[0]["lr"] = 0.0
        work.rate = lambda: 0.0  # type: ignore[method-assign]
        while not work.ctx.control.finishing:
            self.again()  # type: ignore[misc]
            if work.run.norm is None:  # else it made the step too
                torch.linalg.vector_norm(vector.grad)
                optimizer.step()
            made += 1
            if self.log.elapsed() - written > BURST:
                written = self.log.elapsed()
                self.log.write(steps=made * self.steps, updates=made, thread=time.thread_time())


class Recorder:
    """A runner that notes how it was called."""

    def __init__(self, run: Any, repeat: Repeat):
        self.inner, self.repeat = run, repeat

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *given: Any) -> Any:
        self.repeat.again = partial(self.inner, *given)  # type: ignore[assignment]
        return self.inner(*given)

    def part(self, *given: Any) -> Any:
        """See Runner.part."""
        self.repeat.again = partial(self.inner.part, *given)  # type: ignore[assignment]
        return self.inner.part(*given)


def products(system: str, batch: int, width: int, seen: int = 17, size: int = 6) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of the products of one update with two layers, of TD3 the mean of two: here those of both.

    A forward pass multiplies rows by weights; the gradient of weights, inputs by outputs' gradients; the gradient of
    inputs, these by weights, but for the first layer's where nobody asks.
    """

    def passes(sizes: tuple[int, ...], weights: bool = False, inputs: int = 0) -> list[tuple[int, int, int]]:
        layers = list(pairwise(sizes))
        forward = [(batch, a, b) for a, b in layers]
        back = [(a, batch, b) for a, b in layers if weights]
        return [*forward, *back, *((batch, b, a) for a, b in layers[len(layers) - inputs :])]

    critic = seen + size, width, width, 1
    actor = seen, width, width, size * (2 if system == "sac" else 1)
    learnt = 2 * passes(critic, weights=True, inputs=2)
    if system == "sac":
        return [*passes(actor), *2 * passes(critic), *learnt, *passes(actor, True, 2), *2 * passes(critic, inputs=3)]
    critics = [*passes(actor), *2 * passes(critic), *learnt]
    return [*2 * critics, *passes(actor, True, 2), *passes(critic, inputs=3)]


def multiply(shapes: list[tuple[int, int, int]], counter: Any) -> None:
    """Multiply matrices of these shapes for ever."""
    torch.set_num_threads(1)
    pairs = [(torch.randn(a, b), torch.randn(b, c), torch.empty(a, c)) for a, b, c in shapes]
    while True:
        for x, y, out in pairs:
            torch.mm(x, y, out=out)
        counter.value += 1


def products_alone(asked: argparse.Namespace) -> None:
    n, updates = cores(), 1 if asked.system == "sac" else 2
    several, shapes = multiprocessing.get_context("fork"), products(asked.system, asked.rows // n, asked.width)
    counters = [several.Value("q", 0, lock=False) for _ in range(n)]
    for counter in counters:
        several.Process(target=multiply, args=(shapes, counter), daemon=True).start()
    log = Log(asked.log)
    while True:
        time.sleep(BURST)
        log.write(steps=updates * sum(counter.value for counter in counters) / n)
        asked.log or print(updates * sum(counter.value for counter in counters) / n / log.elapsed())


def updates(asked: argparse.Namespace, more: list[str]) -> None:
    pairs = zip(more[::2], more[1::2], strict=True)
    given = keywords(" ".join(f"{k.removeprefix('--').replace('-', '_')}={v}" for k, v in pairs), "")
    wired = wire(asked.system, given | {"env": asked.env, "lanes": asked.lanes})
    steps = wired.replay.batch / wired.replay.ratio if wired.replay else wired.T * wired.B / wired.turn
    repeat, apply = Repeat(Log(asked.log), steps), Learner.apply_gradient

    def watched(self: Learner, *rest: Any, **named: Any) -> Any:
        repeat.watch(self)
        return apply(self, *rest, **named)

    Learner.apply_gradient = watched  # type: ignore[method-assign]
    words = ["train", asked.system, "--env", asked.env, "--lanes", str(asked.lanes), *more, "--on", "thread"]
    with tempfile.TemporaryDirectory() as place:
        main_of_polyplay([*words, "--quiet", "--no-tensorboard", "--minutes", "20", "--run", f"{place}/run"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("environments", "updates", "products"), required=True)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--system", default="ppo", help="of updates; all other options are that system's")
    parser.add_argument("--rows", type=int, default=256, help="of products: of a batch")
    parser.add_argument("--width", type=int, default=256, help="of products: of two layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="file for a line of counters a second")
    asked, more = parser.parse_known_args()
    if asked.part == "environments":
        environments(asked)
    elif asked.part == "products":
        products_alone(asked)
    else:
        updates(asked, more)


if __name__ == "__main__":
    main()
