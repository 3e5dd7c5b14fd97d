"""Slow plain twins in float64: explicit O(T²) sums per lane, no torch, no recursion shared with the package.

A lane is a dict of equally long lists, rows 0..T: reward, terminated, truncated, first, value and, for
V-trace, log_rho (rows 0..T-1 used). Every twin walks forward from t and stops where the episode does.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Lane = dict[str, Any]
EVENTS = ("go", "terminate", "truncate", "both", "restart")


def lane_flags(events: list[str], begin: str) -> dict[str, list[bool]]:
    """Rows 0..T as a pool makes them. `begin` is row 0's kind: "first", or what a running episode did.

    The row after a final one is always a first, whatever the event says; "restart" is a first by itself.
    """
    rows: list[str] = []
    for event in [begin, *events]:
        ended = bool(rows) and rows[-1] in ("terminate", "truncate", "both")
        rows.append("first" if ended or event == "restart" else event)
    return {
        "first": [r == "first" for r in rows],
        "terminated": [r in ("terminate", "both") for r in rows],
        "truncated": [r in ("truncate", "both") for r in rows],
    }


def stretch(lane: Lane, t: int) -> int:
    """Number of real transitions in a row that start at t: up to the episode's end or the last row."""
    steps = 0
    while t + steps < len(lane["first"]) - 1 and not lane["first"][t + steps + 1]:
        steps += 1
        if lane["terminated"][t + steps]:
            break
    return steps


def future(lane: Lane, row: int, values: list[float]) -> float:
    """What `values` says lies ahead of `row`: nothing once the episode terminated there."""
    return 0.0 if lane["terminated"][row] else values[row]


def n_step(lane: Lane, gamma: float, n: int | None = None) -> list[float]:
    """G_t = Σ_{k<m} γᵏ·r_{t+k+1} + γᵐ·V_{t+m}, m = min(n, what the episode has); V_t where m = 0."""
    result = []
    for t in range(len(lane["value"]) - 1):
        m = stretch(lane, t) if n is None else min(n, stretch(lane, t))
        total = sum(gamma**k * lane["reward"][t + k + 1] for k in range(m))
        total += gamma**m * (future(lane, t + m, lane["value"]) if m else lane["value"][t])
        result.append(total)
    return result


def lambda_return(lane: Lane, gamma: float, lam: float) -> list[float]:
    """GAE's target: the λ-weighted mean of the 1..m-step returns, the last taking the weight that is left."""
    longest = len(lane["value"]) - 1
    returns = {n: n_step(lane, gamma, n) for n in range(1, longest + 1)}
    result = []
    for t in range(longest):
        m = stretch(lane, t)
        total = sum((1 - lam) * lam ** (n - 1) * returns[n][t] for n in range(1, m))
        result.append(total + lam ** (m - 1) * returns[m][t] if m else lane["value"][t])
    return result


def vtrace(
    lane: Lane,
    gamma: float,
    rho: float | None = 1.0,
    c: float | None = 1.0,
    rho_pg: float | None = 1.0,
    lam: float = 1.0,
) -> tuple[list[float], list[float]]:
    """Targets and advantages by the sum of Espeholt et al. 2018, eq. 1: products of c written out."""
    value, reward = lane["value"], lane["reward"]
    horizon = len(value) - 1

    def ratio(t: int, bound: float | None) -> float:
        return min(math.inf if bound is None else bound, math.exp(lane["log_rho"][t]))

    target = list(value)
    for s in range(horizon):
        for t in range(s, s + stretch(lane, s)):
            traces = math.prod(lam * ratio(i, c) for i in range(s, t))
            error = reward[t + 1] + gamma * future(lane, t + 1, value) - value[t]
            target[s] += gamma ** (t - s) * traces * ratio(t, rho) * error
    advantage = [0.0] * horizon
    for t in range(horizon):
        if stretch(lane, t):
            ahead = reward[t + 1] + gamma * future(lane, t + 1, target)
            advantage[t] = ratio(t, rho_pg) * (ahead - value[t])
    return target[:-1], advantage


def squash(r: float, how: str, scale: float) -> float:
    r *= scale
    return {"none": r, "clip": max(-1.0, min(1.0, r)), "sign": float(np.sign(r))}[how]


def actor_critic(
    rows: dict[str, np.ndarray],
    advantage: np.ndarray,
    target: np.ndarray,
    *,
    reduction: str,
    value_cost: float,
    value_half: bool,
    entropy_cost: float,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Loss terms and the analytic gradient for logp, value, entropy [T+1, B], entry by entry.

    `rows` holds first and the learner's logp, value, entropy, each [T+1, B]; advantage and target are [T, B].
    """
    half = 0.5 if value_half else 1.0
    grads = {k: np.zeros_like(rows["logp"]) for k in ("logp", "value", "entropy")}
    real = [(t, b) for t, b in np.ndindex(*advantage.shape) if not rows["first"][t + 1, b]]
    count = max(len(real), 1)
    weight = 1.0 / count if reduction == "mean" else 1.0
    terms: dict[str, Any] = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0}
    for at in real:
        error = rows["value"][at] - target[at]
        terms["policy_loss"] -= advantage[at] * rows["logp"][at] / count
        terms["value_loss"] += half * error * error / count
        terms["entropy"] += rows["entropy"][at] / count
        grads["logp"][at] = -weight * advantage[at]
        grads["value"][at] = weight * value_cost * half * 2.0 * error
        grads["entropy"][at] = -weight * entropy_cost
    total = terms["policy_loss"] + value_cost * terms["value_loss"] - entropy_cost * terms["entropy"]
    return {"loss": total * weight * count, **terms}, grads


def rmsprop(
    theta: float,
    grads: list[float],
    lr: list[float],
    alpha: float,
    eps: float,
    *,
    eps_inside: bool,
    g0: float,
    centered: bool = False,
    sums: bool = False,
) -> list[float]:
    """One number through RMSProp or AdaGrad, step by step: its value after each gradient."""
    g, mean, path = g0, 0.0, []
    for grad, rate in zip(grads, lr, strict=True):
        g = g + grad * grad if sums else alpha * g + (1.0 - alpha) * grad * grad
        mean = alpha * mean + (1.0 - alpha) * grad
        spread = max(g - mean * mean, 0.0) if centered else g
        update = grad / math.sqrt(spread + eps) if eps_inside else grad / (math.sqrt(spread) + eps)
        theta -= rate * update
        path.append(theta)
    return path


def project(chances: list[float], ret: float, discount: float, low: float, high: float) -> list[float]:
    """Bellemare et al. 2017 by the triangles of RLAX: every atom asks every moved atom for its share."""
    size = len(chances)
    gap = (high - low) / (size - 1)
    atoms = [low + i * gap for i in range(size)]
    moved = [min(high, max(low, ret + discount * z)) for z in atoms]
    return [
        sum(p * min(1.0, max(0.0, 1.0 - abs(t - z) / gap)) for t, p in zip(moved, chances, strict=True)) for z in atoms
    ]


def rescale(x: float, eps: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + eps * x


def unscale(y: float, eps: float) -> float:
    """The closed form as R2D2 prints it."""
    root = (math.sqrt(1.0 + 4.0 * eps * (abs(y) + 1.0 + eps)) - 1.0) / (2.0 * eps)
    return math.copysign(root * root - 1.0, y)


def sequence(lane: Lane, gamma: float, n: int, eps: float | None) -> tuple[list[float], list[bool]]:
    """R2D2's targets of rows 0..R-2 and which are learnt. lane: also "ahead", Q⁻(s, a*), and "valid", row by row."""
    h, inverse = (lambda x: x, lambda x: x) if eps is None else (lambda x: rescale(x, eps), lambda x: unscale(x, eps))
    rows = len(lane["first"])
    made, learnt = [], []
    for t in range(rows - 1):
        total, steps, ended = 0.0, 0, False
        while steps < n and t + steps + 1 < rows and not ended:
            at = t + steps + 1
            if lane["first"][at] or not lane["valid"][at - 1]:
                break
            total += gamma**steps * lane["reward"][at]
            steps, ended = steps + 1, lane["terminated"][at]
        made.append(h(total + (0.0 if ended else gamma**steps * inverse(lane["ahead"][t + steps]))))
        learnt.append(steps > 0 and t < rows - n)
    return made, learnt


def outliers(losses: list[float], k: float, warm_up: int, horizon: int, cap: int) -> list[tuple[bool, float]]:
    """Whether each loss is admitted, and how far it was from the bound (infinite where there was none): all losses
    admitted so far with their weights, as fractions, mean and variance anew each time.
    """
    said, kept, row = [], list[tuple[Fraction, Fraction]](), 0
    for size in (Fraction(abs(x)) for x in losses):
        mean = sum(w * x for w, x in kept)
        variance = sum(w * (x - mean) ** 2 for w, x in kept)
        bound = float(mean) + k * math.sqrt(variance) if len(kept) >= warm_up else math.inf
        inside = float(size) <= bound
        said.append((inside or row == cap, abs(float(size) - bound)))
        if inside or row == cap:
            kept = kept if inside else []
            share = Fraction(1, min(len(kept) + 1, horizon))
            kept = [*((w * (1 - share), x) for w, x in kept), (share, size)]
            row = 0
        else:
            row += 1
    return said


class Shards:
    """Shards of a parameter server as lists: one number a part that each gradient adds 1 to, nothing in parallel."""

    def __init__(self, learners: int, shards: int, stale: int):
        self.stale, self.version = stale, [0] * shards
        self.held = [[0] * shards for _ in range(learners)]
        self.waiting: list[dict[int, int]] = [
            {} for _ in range(shards)
        ]  # of each: learner → the version it was made of
        self.lags: list[list[int]] = [[] for _ in range(shards)]
        self.dropped = [0] * shards

    def pull(self, learner: int) -> None:
        self.held[learner] = list(self.version)

    def push(self, learner: int, shard: int) -> None:
        assert learner not in self.waiting[shard]
        self.waiting[shard][learner] = self.held[learner][shard]

    def sweep(self, shard: int) -> None:
        for learner in sorted(self.waiting[shard]):
            lag = self.version[shard] - self.waiting[shard].pop(learner)
            self.lags[shard].append(lag)
            if self.stale and lag > self.stale:
                self.dropped[shard] += 1
            else:
                self.version[shard] += 1


def clipped_adam(
    grads: list[float], rates: list[float], eps: float, beta1: float, beta2: float
) -> tuple[list[float], bool]:
    """θ after each gradient, from 0: sums over all gradients so far; whether any was clipped to 5 deviations."""
    path, kept, theta = [], [], 0.0
    for t, rate in enumerate(rates, 1):
        past = [(1 - beta2) * beta2 ** (t - 1 - i) * grads[i] ** 2 for i in range(t)]
        deviation = math.sqrt(sum(past) / (1 - beta2**t))
        reach = 5.0 * deviation
        kept.append(-reach if grads[t - 1] < -reach else reach if grads[t - 1] > reach else grads[t - 1])
        mean = sum((1 - beta1) * beta1 ** (t - 1 - i) * kept[i] for i in range(t)) / (1 - beta1**t)
        theta -= rate * mean / (deviation + eps)
        path.append(theta)
    return path, kept != grads
