"""What an agent of `polyplay train ftw` knows: linear probes from its core's state to yes-or-no facts of the true game.

    python bench/ftw_probes.py runs/ftw --matches 100

The run's best agent plays all seats on held-out maps. A logistic regression for each fact learns from half of the
matches and is tested on the other half: on the core's state (outputs and cells of both clocks, and z), on that of a
network with new weights that sees the same matches, and on the observation itself. Balanced accuracy: the mean over
both answers, so that who always gives the same one has 50 %. Facts that fewer than RARE of the tested rows have, or
lack, are left out. Of `--checkpoints` of the run, evenly spaced, the same agent is probed in matches of its own; that
table has means over all facts, and matches differ, so a checkpoint is compared with its own observation.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table, verdict
from torch import Tensor

from polyplay.acting.play import load_player
from polyplay.acting.rows import as_tensors, policy_inputs
from polyplay.core import checkpoint, tree
from polyplay.core.tree import Batch
from polyplay.envs import All, Envs
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, HOME, RANGE, TURN, clear
from polyplay.nets.factory import build_network

EVERY = 5  # agent steps from one row that is kept to the next
JUST = 6  # agent steps: how long "just" lasts
NEAR, BASE = 2.0, 2.5  # cells: beside somebody, in a base
RARE = 0.005
STEPS, DECAYS = 60, (0.1, 0.03, 0.01, 1e-3, 1e-4)  # of regressions
KINDS = ("trained", "untrained", "observation")
NEEDED = 30  # facts on which the trained core is the best


def facts_of(s: Batch, since: np.ndarray) -> dict[str, np.ndarray]:
    """bool [n, P] each. since: agent steps since each event, [n, P, E]."""
    P = s["yaw"].shape[1]
    own, theirs = np.repeat((0, 1), P // 2), np.repeat((1, 0), P // 2)
    at, heading = s["at"], s["yaw"] * (2 * np.pi / TURN)
    mate, others = _mates(P), [np.arange(P)[own == t] for t in theirs]
    to_own, to_their = (s["base"][:, t] - at for t in (own, theirs))
    in_own, in_their = (np.hypot(*np.moveaxis(x, -1, 0)) < BASE for x in (to_own, to_their))
    nearer_home = np.hypot(*np.moveaxis(to_own, -1, 0)) < np.hypot(*np.moveaxis(to_their, -1, 0))
    gap = at[:, None] - at[:, :, None]  # [n, who, whom, xy]
    far = np.hypot(gap[..., 0], gap[..., 1])
    seen = _sees(s, far)
    theirs_of = np.array([[q in group for q in range(P)] for group in others])
    angle = (np.arctan2(gap[..., 1], gap[..., 0]) - heading[:, :, None] + np.pi) % (2 * np.pi) - np.pi
    carry = np.stack([(s["carrier"][:, theirs[p]] == p) for p in range(P)], 1)
    lead = s["score"][:, own] - s["score"][:, theirs]
    just = {name: since[..., i] < JUST for i, name in enumerate(EVENTS)}
    flag_own, flag_their = s["flag"][:, own], s["flag"][:, theirs]
    close = np.where(theirs_of, far, np.inf)
    nearest = close.argmin(2)
    side = np.take_along_axis(angle, nearest[..., None], 2)[..., 0]
    facing_own, facing_their = (_facing(x, heading) for x in (to_own, to_their))
    enemy = lambda x: (x[:, None] & theirs_of).any(2)  # noqa: E731
    return {
        "I carry the flag": carry,
        "my teammate carries the flag": carry[:, mate],
        "our flag is at home": flag_own == HOME,
        "our flag is carried": flag_own == CARRIED,
        "our flag lies somewhere": flag_own == DROPPED,
        "their flag is at home": flag_their == HOME,
        "their flag lies somewhere": flag_their == DROPPED,
        "both flags are away": (flag_own != HOME) & (flag_their != HOME),
        "I am in our base": in_own,
        "I am in their base": in_their,
        "my teammate is in our base": in_own[:, mate],
        "my teammate is in their base": in_their[:, mate],
        "an opponent is in our base": enemy(in_their),
        "an opponent is in their base": enemy(in_own),
        "I am in our half": nearer_home,
        "my teammate is in our half": nearer_home[:, mate],
        "an opponent is in our half": enemy(~nearer_home),
        "both opponents are in our half": ((~nearer_home)[:, None] | ~theirs_of).all(2),
        "my teammate is in the other half than I": nearer_home != nearer_home[:, mate],
        "an opponent is in sight": (seen & theirs_of).any(2),
        "both opponents are in sight": (seen | ~theirs_of).all(2),
        "my teammate is in sight": seen[:, np.arange(P), mate],
        "who carries our flag is in sight": (seen & (carry[:, None] & theirs_of)).any(2),
        "my teammate is beside me": far[:, np.arange(P), mate] < NEAR,
        "an opponent is beside me": close.min(2) < NEAR,
        "the nearest opponent is to my left": side < 0,
        "the nearest opponent is behind me": abs(side) > np.pi / 2,
        "an opponent is straight ahead": ((abs(angle) < 0.15) & theirs_of & seen).any(2),
        "our base is ahead": facing_own,
        "their base is ahead": facing_their,
        "I can tag": s["loads"] <= 1,
        "we lead": lead > 0,
        "they lead": lead < 0,
        "it is even": lead == 0,
        "I was just tagged": just["was_tagged"] | just["was_tagged_carrying"],
        "my teammate was just tagged": (just["was_tagged"] | just["was_tagged_carrying"])[:, mate],
        "I just tagged": just["tagged_other"] | just["tagged_carrier"],
        "my teammate just tagged": (just["tagged_other"] | just["tagged_carrier"])[:, mate],
        "I just picked up the flag": just["picked_up"],
        "my teammate just picked up the flag": just["teammate_picked_up"],
        "an opponent just picked up our flag": just["opponent_picked_up"],
        "we just captured": just["captured"] | just["teammate_captured"],
        "they just captured": just["opponent_captured"],
        "our flag was just returned": just["returned"] | just["teammate_returned"],
        "the last third of the match": np.repeat(s["age"][:, None] > s["length"] * 2 / 3, P, 1),
    }


def _mates(P: int) -> np.ndarray:
    """Of each seat another one of its team."""
    half = P // 2
    return np.array([(p + 1) % half + (p >= half) * half for p in range(P)])


def _facing(to: np.ndarray, heading: np.ndarray) -> np.ndarray:
    return (to[..., 0] * np.cos(heading) + to[..., 1] * np.sin(heading)) > 0.7 * np.hypot(to[..., 0], to[..., 1])


def _sees(s: Batch, far: np.ndarray) -> np.ndarray:
    """bool [n, who, whom]: no wall is between them, nor too many cells."""
    found = np.zeros(far.shape, bool)
    for m, p, q in np.argwhere((far <= RANGE) & (far > 0)).tolist():
        found[m, p, q] = clear(s["grid"][m], *s["at"][m, p], *s["at"][m, q])
    return found


def collect(envs: Envs, policy: Any, untrained: Any, matches: int, seed: int) -> dict[str, np.ndarray]:
    """Rows [k, …] of all seats: facts, and what each probe gets."""
    P = envs.spec.seats
    opened = replace(envs, lanes=matches * P, batching=All(), groups=1, agents=1, active=0, workers=0)
    states = [net.initial(matches * P) for net in (policy, untrained)]
    rng, rows, since = np.random.default_rng(seed), list[Batch](), np.full((matches, P, len(EVENTS)), 10**6)
    with closing(opened.open(seed)) as pool, torch.no_grad():
        length, repeat = pool.game.world.length, pool.game.world.repeat
        for t in range(length // repeat):
            which, step = pool.recv()
            since = np.where(step["events"].reshape(since.shape) > 0, 0, since + 1)
            inputs = as_tensors({**policy_inputs(step), "noise": rng.random((matches * P, policy.noise), np.float32)})
            out, states[0] = policy.act(inputs, states[0])
            _, states[1] = untrained.act(inputs, states[1])
            states[1]["action"] = out["action"]
            if t % EVERY == EVERY - 1:
                s = {**tree.map(np.copy, pool.state()["game"]), "length": np.full(matches, length)[:, None]}
                row = {k: v.reshape(-1) for k, v in facts_of(s, since).items()}
                obs = np.concatenate([np.asarray(x).reshape(matches * P, -1) for _, x in tree.leaves(step["obs"])], 1)
                cores = [torch.cat([state[k] for k in _names(state)], 1).numpy() for state in states]
                row |= {"trained": cores[0], "untrained": cores[1], "observation": obs.astype(np.float32)}
                rows.append(row | {"match": np.repeat(np.arange(matches), P)})
            pool.send(which, tree.map(lambda x: x.numpy(), out["action"]))
    return {k: np.concatenate([row[k] for row in rows]) for k in rows[0]}


def _names(state: Batch) -> list[str]:
    return [name for name in ("h", "c", "slow_h", "slow_c", "z") if name in state]


def probe(x: np.ndarray, y: np.ndarray, match: np.ndarray) -> np.ndarray:
    """Balanced accuracy of each fact [F] in matches of odd numbers, by regressions on the others; y bool [k, F]. Their
    decay is the one of DECAYS that is best where a regression on half of those is tried on the other half.
    """
    train = match % 2 == 0
    inputs = torch.from_numpy((x - x[train].mean(0)) / (x[train].std(0) + 1e-3)).float()
    wanted, (fit, other, tested) = torch.from_numpy(y).float(), (match % 4 == 0, match % 4 == 2, ~train)
    tried = {d: _balanced(inputs[other], y[other], _regress(inputs[fit], wanted[fit], d)).mean() for d in DECAYS}
    best = max(DECAYS, key=lambda d: tried[d])
    return _balanced(inputs[tested], y[tested], _regress(inputs[train], wanted[train], best))


def _regress(x: Tensor, y: Tensor, decay: float) -> Tensor:
    """Weights of all facts, the last row their bias."""
    share = y.mean(0).clamp(1e-4, 1 - 1e-4)
    weight = torch.where(y > 0, 0.5 / share, 0.5 / (1 - share))
    w = torch.zeros(x.shape[1] + 1, y.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = x @ w[:-1] + w[-1]
        wrong = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, weight, reduction="sum") / len(x)
        total = wrong + decay / 2 * w[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return w.detach()


def _balanced(x: Tensor, y: np.ndarray, w: Tensor) -> np.ndarray:
    right = (x @ w[:-1] + w[-1] > 0).numpy() == y
    return np.array([(r[t].mean() + r[~t].mean()) / 2 for r, t in zip(right.T, y.T, strict=True)])


def probed(agent: RunAgent, matches: int) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
    """Of one agent: facts, their shares of the tested rows, and the accuracies of each of KINDS."""
    envs = replace(agent.wired.envs, name=f"{agent.wired.envs.title}+maps=held_out", options={})
    policy = load_player(agent.wired, agent.weights, agent=agent.agent)
    found = collect(envs, policy, build_network(agent.wired.policy, 12345), matches, 77)
    match = found["match"]
    tested, fit = match % 2 == 1, match % 4 == 0
    names = [name for name, v in found.items() if v.dtype == bool]
    names = [name for name in names if RARE < found[name][tested].mean() < 1 - RARE and 0 < found[name][fit].mean() < 1]
    y = np.stack([found[name] for name in names], 1)
    return names, y[tested].mean(0), {kind: probe(found[kind], y, match) for kind in KINDS}


def over_training(run: Path, number: int, n: int, matches: int) -> list[Row]:
    """Of n checkpoints, evenly spaced: what the agent of that number knew then."""
    there, rows = checkpoint.everything(run), list[Row]()
    for i in np.linspace(0, len(there) - 1, n):
        path = there[round(i)]
        (agent,) = find_agents(f"{path}:{number}")
        names, _, got = probed(agent, matches)
        above = int(((got["trained"] > got["untrained"]) & (got["trained"] > 0.5)).sum())
        steps = checkpoint.manifest(path)["counters"]["steps"]
        means = {kind: f"{got[kind].mean():.1%}" for kind in KINDS}
        rows.append({"agent steps": f"{steps:,}", **means, "trained above untrained": f"{above} of {len(names)}"})
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--matches", type=int, default=100)
    parser.add_argument("--checkpoints", type=int, default=0, help="of the run, for accuracy over training")
    asked = parser.parse_args()
    (agent,) = find_agents(f"{asked.run}:best")
    names, shares, got = probed(agent, asked.matches)
    n = asked.matches * agent.wired.envs.spec.seats
    rows: list[Row] = [
        {"fact": name, "of rows": f"{shares[i]:.1%}", **{kind: f"{got[kind][i]:.1%}" for kind in KINDS}}
        for i, name in enumerate(names)
    ]
    best = int(((got["trained"] > got["untrained"]) & (got["trained"] > 0.5)).sum())
    over = int((got["trained"] > got["observation"]).sum())
    what = about()
    text = ["# What an agent of FTW knows", "", *lines_about(what), ""]
    text += [
        f"`{asked.run.name}`, agent {agent.agent}, {asked.matches} matches of {n // asked.matches} on held-out maps."
    ]
    text += ["Balanced accuracy on matches that the probes were not trained on.", "", *table(rows), ""]
    means = ", ".join(f"{kind} {got[kind].mean():.1%}" for kind in KINDS)
    text += [f"Means: {means}. The trained core is above the observation on {over} of {len(names)}.", ""]
    what_of = f"facts, of {len(names)}, on which the trained core is above the untrained one and 50 %"
    text += [verdict(what_of, best, least=NEEDED)]
    curve = over_training(asked.run, agent.agent, asked.checkpoints, asked.matches)
    if curve:
        text += ["", "Over training, means over all facts:", "", *table(curve)]
    publish(RESULTS / "ftw_probes", {**what, "rows": rows, "above": best, "facts": len(names), "curve": curve}, text)


if __name__ == "__main__":
    main()
