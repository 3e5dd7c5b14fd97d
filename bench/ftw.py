"""How well agents play that `polyplay train ftw` trained: against random play and bots, on held-out maps.

    python bench/ftw.py runs/ftw runs/selfplay_shaped runs/selfplay --matches 200

Of each run the agent with the highest Elo among its own. Half of the matches are played on each side. Runs, random play
and bots meet each other on one Elo scale, with random play at 0. Of `--checkpoints` of each run, evenly spaced in time,
all agents take their turns against random play and the bots: their Elo is on the same scale, as if they were one.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import RESULTS, Row, about, command_line, commands, lines_about, publish, said, spread, table, verdict
from torch import Tensor

from polyplay import systems
from polyplay.acting.actor import MatchEnds, act_rows
from polyplay.acting.play import PlayOptions, TeamPlayer, load_player, policy_player, random_player, scripted_player
from polyplay.cli.plot import COLORS, FAINT, INK
from polyplay.core import checkpoint, tree
from polyplay.core.files import read_lines
from polyplay.core.machine import cores
from polyplay.core.tree import Batch
from polyplay.envs import Envs
from polyplay.envs.lane import load_bot
from polyplay.envs.spaces import fields
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament, rate
from polyplay.games.ctf_rules import CARRIED, DROPPED, EVENTS, HOME, RANGE, TURN, clear
from polyplay.learning.losses import LossOutput
from polyplay.nets.factory import build_network
from polyplay.systems import ftw
from polyplay.workers.crew import Crew
from polyplay.workers.row_costs import CostProfile

AT_ONCE = 50  # matches in step
SHOWN = ("tagged_other", "tagged_carrier", "picked_up", "captured", "returned")
WHERE = ("own base", "their base", "beside teammate")  # shares of the time
NEAR, BASE = 2.0, 2.5  # cells: beside somebody, in a base
OPPONENTS = ("random", *(f"bot:level{level}" for level in range(1, 6)))


class Played(NamedTuple):
    """Of matches [n], the agent's team first: its points, 1 for a won one; events [n, team, E]; and what share of the
    time a player of its team is where [n, WHERE].
    """

    points: np.ndarray
    events: np.ndarray
    where: np.ndarray


def player_of(name: str, envs: Envs, seed: int) -> TeamPlayer:
    return random_player(seed) if name == "random" else scripted_player(load_bot(envs.spec, name.removeprefix("bot:")))


def matches(envs: Envs, players: tuple[TeamPlayer, TeamPlayer], n: int, side: int, seed: int) -> Played:
    """`n` of them at once; players of both teams, the agent's is `side`."""
    seats, teams = envs.spec.seats, np.array(envs.spec.sides)
    lanes = [np.flatnonzero(np.tile(teams, n) == team) for team in (0, 1)]
    events, gained = np.zeros((n, seats, len(EVENTS))), np.zeros((n, seats))
    where, rows = np.zeros((n, seats, len(WHERE))), np.zeros(n)
    on, ends = np.ones(n, bool), MatchEnds(np.arange(n * seats).reshape(n, seats))
    opened = replace(envs, lanes=n * seats, at_once=0, groups=1, agents=1, active=0, workers=0)
    action = tree.zeros(fields(envs.spec.action), (n * seats,))
    with closing(opened.open(seed)) as pool:
        chosen = [player(pool, own) for player, own in zip(players, lanes, strict=True)]
        while on.any():
            which, step = pool.recv()
            events[on] += step["events"].reshape(events.shape)[on]
            gained[on] += step["reward"].reshape(gained.shape)[on]
            on[ends.watch(np.arange(n * seats), step)[0]] = False
            state = pool.state()
            assert state is not None, "a game of ours says its state"
            where[on] += whereabouts(state["game"])[on]
            rows += on
            for choose, own in zip(chosen, lanes, strict=True):
                tree.write(action, own, choose(tree.at(step, own)))
            pool.send(which, action)
    own, other = teams == side, teams != side
    shares = where[:, own].mean(1) / rows[:, None]
    won = (1 + np.sign(gained[:, own].sum(1))) / 2
    return Played(won, np.stack([events[:, own].sum(1), events[:, other].sum(1)], 1), shares)


def whereabouts(s: Batch) -> np.ndarray:
    """WHERE, for each seat of each match: bool [n, P, 3]."""
    at, half = s["at"], s["at"].shape[1] // 2
    to_base = np.linalg.norm(at[:, :, None] - s["base"][:, None], axis=-1) < BASE  # [n, P, team]
    own = np.concatenate([to_base[:, :half, 0], to_base[:, half:, 1]], 1)
    theirs = np.concatenate([to_base[:, :half, 1], to_base[:, half:, 0]], 1)
    gaps = np.linalg.norm(at[:, :, None] - at[:, None], axis=-1) + np.diag(np.full(2 * half, np.inf))
    beside = np.concatenate([gaps[:, :half, :half].min(2), gaps[:, half:, half:].min(2)], 1) < NEAR
    return np.stack([own, theirs, beside], 2)


def meet(envs: Envs, agent: RunAgent, other: str, n: int) -> Played:
    """`n` matches, half on each side."""
    policy = load_player(agent.wired, agent.weights, agent=agent.agent)
    me, them = policy_player(policy, PlayOptions(n, 1)), player_of(other, envs, 2)
    at_once, found = min(AT_ONCE, n // 2), list[Played]()
    for side, players in enumerate(((me, them), (them, me))):
        found += [matches(envs, players, at_once, side, 1000 + k) for k in range(n // 2 // at_once)]
    return joined(found)


def joined(found: Sequence[Played]) -> Played:
    return Played(*map(np.concatenate, zip(*found, strict=True)))


def against(other: str, played: Played) -> Row:
    """Points with a 95 % interval, the share in which the agent's team captured, events a match, and where its players
    were.
    """
    points, events = played.points, played.events
    spread = 1.96 * np.std(points) / math.sqrt(len(points))
    row: Row = {"against": other, "points": f"{np.mean(points):.1%} ± {spread:.1%}"}
    row["captures in"] = f"{np.mean(events[:, 0, EVENTS.index('captured')] > 0):.0%}"
    for name in SHOWN:
        own, others = events[:, :, EVENTS.index(name)].mean(0)
        row[name] = f"{own:.2f} : {others:.2f}"
    return row | {name: f"{share:.0%}" for name, share in zip(WHERE, played.where.mean(0), strict=True)}


def spaced(run: Path, n: int) -> list[Path]:
    """So many of a run's checkpoints, from the first to the last, evenly spaced."""
    found = checkpoint.everything(run)
    return [found[round(i)] for i in np.linspace(0, len(found) - 1, min(n, len(found)))]


def curve_of(run: Path, envs: Envs, n: int, matches_of: int) -> tuple[list[Row], np.ndarray]:
    """Of so many checkpoints: how all agents together behave against random play, and what they scored per match
    against each of OPPONENTS [checkpoints, 6].
    """
    rows, points = list[Row](), list[list[float]]()
    for path in spaced(run, n):
        agents = find_agents(str(path))
        share = 2 * max(1, matches_of // len(agents) // 2)
        met = {o: joined([meet(envs, agent, o, share) for agent in agents]) for o in OPPONENTS}
        scored = {o: float(played.points.mean()) for o, played in met.items()}
        behavior = against("random", met["random"])
        rows.append({**{o: f"{x:.0%}" for o, x in scored.items()}, **{k: behavior[k] for k in (*SHOWN, *WHERE)}})
        points.append(list(scored.values()))
    return rows, np.array(points).reshape(-1, len(OPPONENTS))


def elo_of(found: Row, points: np.ndarray, matches_of: int) -> list[Row]:
    """elo, low and high of checkpoints by their points per match against OPPONENTS, on the scale of a tournament."""
    names = [player["name"] for player in found["players"]]
    all_names = names + [f"checkpoint {i}" for i in range(len(points))]
    scored, m = np.zeros((len(all_names), len(all_names))), len(names)
    scored[:m, :m] = [[(x or 0.0) * found["matches"] for x in row] for row in found["payoff"]]
    whom = [names.index(other) for other in OPPONENTS]
    scored[m:, whom] = matches_of * points
    scored[np.ix_(whom, range(m, len(all_names)))] = matches_of * (1 - points.T)
    return [{name: r[name] for name in ("elo", "low", "high")} for r in rate(all_names, scored, "random")[m:]]


def draw(curves: dict[str, list[Row]], found: Row, out: Path) -> None:
    """Elo over agent steps and over time: a line for each run, with its 95 % interval; opponents are dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for (run, points), color in zip(curves.items(), COLORS, strict=False):
        for panel, at in zip(panels, ("steps", "minutes"), strict=True):
            x, elo, low, high = (np.array([p[k] for p in points]) for k in (at, "elo", "low", "high"))
            x = x / (1e6 if at == "steps" else 1)
            panel.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            panel.plot(x, elo, color=color, linewidth=1.8, label=run)
    for panel, name in zip(panels, ("million agent steps of all agents", "minutes"), strict=True):
        for player in found["players"]:
            if player["name"] in OPPONENTS:
                panel.axhline(player["elo"], color=INK, linewidth=0.6, linestyle="--", alpha=0.5)
                end = (1, player["elo"])
                panel.annotate(player["name"], end, xycoords=("axes fraction", "data"), ha="right", va="bottom", size=8)
        panel.set_xlabel(name, color=INK)
        panel.grid(color=FAINT)
        panel.set_xlim(0)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("Elo, random play at 0", color=INK)
    panels[0].legend(frameon=False, labelcolor=INK, loc="upper left")
    figure.savefig(out)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--matches", type=int, default=200, help=f"of every two, a multiple of {2 * AT_ONCE}")
    parser.add_argument("--checkpoints", type=int, default=8, help="of each run's curve")
    parser.add_argument("--curve", type=int, default=100, help="matches of a checkpoint against each opponent, about")
    asked = parser.parse_args()
    what, text, data = about(), ["# Capture the flag: who wins", ""], dict[str, Any]()
    text += [*lines_about(what), ""]
    names = [*(f"{run}:best" for run in asked.runs), *OPPONENTS]
    (agent,) = find_agents(names[0])
    title = f"{agent.wired.envs.title}+maps=held_out"
    found = play_tournament(names, TournamentOptions(matches=asked.matches, anchor="random", env=title))
    rated = [{k: p[k] for k in ("name", "elo", "low", "high")} for p in found["players"]]
    text += [f"Elo on one scale, {asked.matches} matches of every two on `{title}`:", "", *table(rated), ""]
    lines = dict[str, list[Row]]()
    for run, name in zip(asked.runs, names, strict=False):
        (agent,) = find_agents(name)
        envs = replace(agent.wired.envs, name=title, options={})
        rows = [against(other, meet(envs, agent, other, asked.matches)) for other in OPPONENTS]
        last = _when(checkpoint.everything(run)[-1])
        text += [
            f"`{run.name}`, agent {agent.agent} after {last['steps']:,} agent steps of all in {last['minutes']:.0f}"
        ]
        text += [f"minutes, {asked.matches} matches; events a match, its : the other's; the share of the time that its"]
        text += ["players are where:", "", *table(rows), ""]
        curve, points = curve_of(run, envs, asked.checkpoints, asked.curve)
        lines[run.name] = [
            {**_when(path), **elo}
            for path, elo in zip(spaced(run, asked.checkpoints), elo_of(found, points, asked.curve), strict=True)
        ]
        shown = [
            {"agent steps": f"{at['steps']:,}", "minutes": f"{at['minutes']:.0f}", "Elo": _elo(at), **row}
            for at, row in zip(lines[run.name], curve, strict=True)
        ]
        text += ["Its checkpoints, all agents: Elo, points, and against random play the rest:", "", *table(shown), ""]
        data[run.name] = {"rows": rows, "curve": curve, "line": lines[run.name]}
    draw(lines, found, RESULTS / "ftw.png")
    text += ["![Elo over agent steps and over time](ftw.png)", ""]
    publish(RESULTS / "ftw", {**what, "runs": data, "tournament": found}, text)


def _when(path: Path) -> Row:
    counters = checkpoint.manifest(path)["counters"]
    return {"steps": counters["steps"], "minutes": counters["wall_seconds"] / 60}


def _elo(at: Row) -> str:
    return f"{at['elo']:.0f} [{at['low']:.0f}, {at['high']:.0f}]"


# What FTW's parts are worth: runs without one of them, at the same agent steps, on held-out maps


def newest(run: Path, steps: float) -> Path:
    """Its newest checkpoint with at most so many agent steps."""
    return [path for path in checkpoint.everything(run) if checkpoint.manifest(path)["counters"]["steps"] <= steps][-1]


def run_ftw_ablations() -> None:
    """What FTW's parts are worth: runs without one of them, at the same agent steps, on held-out maps.

        python bench/ftw.py ablations runs/ftw runs/no_slow runs/no_auxiliary --steps 6.7e6 --matches 200

    Of each run the newest checkpoint with at most so many agent steps, all agents together, as if they were one,
    against random play and the bots. These meet each other and the first run's best agent: all are on one Elo scale,
    where random play has 0.
    """
    parser = command_line(run_ftw_ablations.__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--steps", type=float, default=6.7e6, help="at most so many agent steps")
    parser.add_argument("--matches", type=int, default=200, help="of a run against each opponent, about")
    asked = parser.parse_args()
    what, rows, points = about(), list[Row](), list[list[float]]()
    title = f"{find_agents(str(asked.runs[0]))[0].wired.envs.title}+maps=held_out"
    found: dict[str, Any] = play_tournament(
        [f"{asked.runs[0]}:best", *OPPONENTS], TournamentOptions(matches=asked.matches, anchor="random", env=title)
    )
    for run in asked.runs:
        path = newest(run, asked.steps)
        agents = find_agents(str(path))
        envs, share = replace(agents[0].wired.envs, name=title, options={}), asked.matches // len(agents)
        met = {other: joined([meet(envs, agent, other, share) for agent in agents]) for other in OPPONENTS}
        points.append([float(played.points.mean()) for played in met.values()])
        counters = checkpoint.manifest(path)["counters"]
        row: Row = {"run": run.name, "agent steps": f"{counters['steps']:,}", "Elo": ""}
        row |= {other: f"{played.points.mean():.1%}" for other, played in met.items()}
        rows.append(row | {k: v for k, v in against("random", met["random"]).items() if k not in ("against", "points")})
    rated = elo_of(found, np.array(points), asked.matches)
    for row, elo in zip(rows, rated, strict=True):
        row["Elo"] = f"{elo['elo']:.0f} [{elo['low']:.0f}, {elo['high']:.0f}]"
    text = [
        "# What FTW's parts are worth",
        "",
        *lines_about(what),
        "",
        f"On `{title}`. Opponents, and the first run at its end:",
        "",
    ]
    text += [*table([{k: p[k] for k in ("name", "elo", "low", "high")} for p in found["players"]]), ""]
    text += ["Runs; points in matches with each opponent; what happened is of matches with random play:", ""]
    publish(RESULTS / "ftw_ablations", {**what, "rows": rows, "opponents": found}, [*text, *table(rows), ""])


# What an agent of `polyplay train ftw` knows: linear probes from its core's state to yes-or-no facts of the tru


EVERY = 5  # agent steps from one row that is kept to the next
JUST = 6  # agent steps: how long "just" lasts
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
    opened = replace(envs, lanes=matches * P, at_once=0, groups=1, agents=1, active=0, workers=0)
    states = [net.initial(matches * P) for net in (policy, untrained)]
    rng, rows, since = np.random.default_rng(seed), list[Batch](), np.full((matches, P, len(EVENTS)), 10**6)
    with closing(opened.open(seed)) as pool, torch.no_grad():
        length, repeat = pool.game.length, pool.game.repeat
        for t in range(length // repeat):
            which, step = pool.recv()
            since = np.where(step["events"].reshape(since.shape) > 0, 0, since + 1)
            noise = rng.random((matches * P, policy.noise), np.float32)
            out, states[0] = act_rows(policy, step, states[0], noise)
            _, states[1] = act_rows(untrained, step, states[1], noise)
            states[1]["action"] = tree.map(torch.from_numpy, out["action"])
            if t % EVERY == EVERY - 1:
                s = {**tree.map(np.copy, pool.state()["game"]), "length": np.full(matches, length)[:, None]}
                row = {k: v.reshape(-1) for k, v in facts_of(s, since).items()}
                obs = np.concatenate([np.asarray(x).reshape(matches * P, -1) for _, x in tree.leaves(step["obs"])], 1)
                cores = [torch.cat([state[k] for k in _names(state)], 1).numpy() for state in states]
                row |= {"trained": cores[0], "untrained": cores[1], "observation": obs.astype(np.float32)}
                rows.append(row | {"match": np.repeat(np.arange(matches), P)})
            pool.send(which, out["action"])
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


def run_ftw_probes() -> None:
    """What an agent of `polyplay train ftw` knows: linear probes from its core's state to yes-or-no facts of the true
    game.

        python bench/ftw.py probes runs/ftw --matches 100

    The run's best agent plays all seats on held-out maps. A logistic regression for each fact learns from half of the
    matches and is tested on the other half: on the core's state (outputs and cells of both clocks, and z), on that of a
    network with new weights that sees the same matches, and on the observation itself. Balanced accuracy: the mean over
    both answers, so that who always gives the same one has 50 %. Facts that fewer than RARE of the tested rows have, or
    lack, are left out. Of `--checkpoints` of the run, evenly spaced, the same agent is probed in matches of its own;
    that table has means over all facts, and matches differ, so a checkpoint is compared with its own observation.
    """
    parser = command_line(run_ftw_probes.__doc__)
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


# What the core of two clocks and the auxiliary tasks cost, and how near training comes to what its parts allow


ARMS = {
    "no core": {"core": "none", "auxiliary": "none"},
    "LSTM": {"core": "lstm", "auxiliary": "none"},
    "two clocks": {"auxiliary": "none"},
    "two clocks, auxiliary tasks": {},
}
MOST = {"two clocks / LSTM": 1.5, "auxiliary tasks / without": 1.4}
LEAST = 0.85  # of what the parts allow


class Profile(CostProfile):
    """Predicts rewards too, from as many examples as a learner draws."""

    def score(self, rows: Batch, state: Batch) -> LossOutput:
        obs = {k: v[:3] for k, v in rows["obs"].items()}
        drawn = {"recent": obs, "recent_reward": torch.zeros(rows["first"].shape[1]), "recent_weight": torch.ones(())}
        return super().score({**rows, **drawn}, state)


def profile_of(given: Row) -> Profile:
    crew, config = Crew(0), replace(systems.load("ftw").presets["quick"](), **given)
    envs = ftw.build(config, crew).envs
    return Profile(envs, next(role.spec for role in crew.roles if role.learner))


def parts(profile: Profile, seconds: float) -> Row:
    c = systems.load("ftw").presets["quick"]()
    width = c.lanes // c.players
    found = {"game": profile.env(seconds, c.lanes) / c.lanes, "acting": profile.infer(width, seconds) / width}
    return found | {"learning": profile.learn(c.unroll, c.batch, seconds) / c.unroll / c.batch}


def trained(system: str, steps: int, *words: str) -> float:
    """Agent steps a second of a run of preset quick, after its first third."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        command = ["train", system, "--preset", "quick", "--steps", str(steps), "--run", str(run), "--quiet", *words]
        subprocess.run([sys.executable, "-m", "polyplay", *command, "--no-tensorboard"], check=True)
        rows = [row for row in read_lines(run / "metrics.jsonl") if row["steps"] > steps / 3]
        return (rows[-1]["steps"] - rows[0]["steps"]) / (rows[-1]["wall_seconds"] - rows[0]["wall_seconds"])


def run_ftw_speed() -> None:
    """What the core of two clocks and the auxiliary tasks cost, and how near training comes to what its parts allow.

        python bench/ftw.py speed --seconds 2 --rounds 3

    Parts are CPU microseconds per agent step on one core, float32: the game for 64 lanes, acting for a player's 16
    lanes, and an update of 16 rollouts of 50 steps. Arms take turns; ratios are taken within a round. The limit is
    cores ÷ the sum of the parts. Beside it a run of `polyplay train ftw --preset quick`, whose first third does not
    count.
    """
    parser = command_line(run_ftw_speed.__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000, help="agent steps of the run; 0: none")
    asked = parser.parse_args()
    profiles = {name: profile_of(given) for name, given in ARMS.items()}
    rounds = [{name: parts(profile, asked.seconds) for name, profile in profiles.items()} for _ in range(asked.rounds)]
    sums = [{name: sum(found.values()) for name, found in one.items()} for one in rounds]
    rows = []
    for name in ARMS:
        row: Row = {"arm": name}
        row |= {
            f"{part}, µs": round(statistics.median(one[name][part] for one in rounds), 1) for part in rounds[0][name]
        }
        rows.append(row | {"limit, agent steps/s": round(cores() * 1e6 / statistics.median(one[name] for one in sums))})
    ratios = {
        "two clocks / LSTM": spread(one["two clocks"] / one["LSTM"] for one in sums),
        "auxiliary tasks / without": spread(one["two clocks, auxiliary tasks"] / one["two clocks"] for one in sums),
    }
    what = about()
    text = ["# FTW: what its parts cost", "", *lines_about(what), "", *table(rows), ""]
    text += [f"{verdict(name, ratio['median'], most=MOST[name])}; {said(ratio)}" for name, ratio in ratios.items()]
    rate = trained("ftw", asked.steps) if asked.steps else None
    if rate is not None:
        share = rate / rows[-1]["limit, agent steps/s"]
        text += [f"{verdict('of the limit', share, least=LEAST)}; {rate:,.0f} agent steps/s"]
    publish(RESULTS / "ftw_speed", {**what, "rounds": rounds, "ratios": ratios, "trained": rate}, text)


if __name__ == "__main__":
    sys.exit(commands({"": main, "ablations": run_ftw_ablations, "probes": run_ftw_probes, "speed": run_ftw_speed}))
