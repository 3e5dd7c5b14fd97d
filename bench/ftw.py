"""How well agents play that `polyplay train ftw` trained: against random play and bots, on held-out maps.

    python bench/ftw.py runs/ftw runs/selfplay_shaped runs/selfplay --matches 200

Of each run the agent with the highest Elo among its own. Half of the matches are played on each side. Runs, random play
and bots meet each other on one Elo scale, with random play at 0. Of `--checkpoints` of each run, evenly spaced in time,
all agents take their turns against random play and the bots: their Elo is on the same scale, as if they were one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.acting.play import PlayOptions, TeamPlayer, load_player, policy_player, random_player, scripted_player
from polyplay.acting.rows import MatchEnds
from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.core import checkpoint, tree
from polyplay.core.tree import Batch
from polyplay.envs import All, Envs
from polyplay.envs.lane import load_bot
from polyplay.envs.spaces import fields
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament, rate
from polyplay.games.ctf_rules import EVENTS

AT_ONCE = 50  # matches in step
SHOWN = ("tagged_other", "tagged_carrier", "picked_up", "captured", "returned")
WHERE = ("own base", "their base", "beside teammate")  # shares of the time
NEAR, BASE = 2.0, 2.5  # cells: as in ftw_probes.py
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
    opened = replace(envs, lanes=n * seats, batching=All(), groups=1, agents=1, active=0, workers=0)
    action = tree.zeros(fields(envs.spec.action), (n * seats,))
    with closing(opened.open(seed)) as pool:
        chosen = [player(pool, own) for player, own in zip(players, lanes, strict=True)]
        while on.any():
            which, step = pool.recv()
            events[on] += step["events"].reshape(events.shape)[on]
            gained[on] += step["reward"].reshape(gained.shape)[on]
            on[ends.watch(np.arange(n * seats), step).whole] = False
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
        behaviour = against("random", met["random"])
        rows.append({**{o: f"{x:.0%}" for o, x in scored.items()}, **{k: behaviour[k] for k in (*SHOWN, *WHERE)}})
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
    return [{"elo": r.elo, "low": r.low, "high": r.high} for r in rate(all_names, scored, "random")[m:]]


def draw(curves: dict[str, list[Row]], found: Row, out: Path) -> None:
    """Elo over agent steps and over time: a line for each run, with its 95 % interval; opponents are dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for (run, points), colour in zip(curves.items(), COLOURS, strict=False):
        for panel, at in zip(panels, ("steps", "minutes"), strict=True):
            x, elo, low, high = (np.array([p[k] for p in points]) for k in (at, "elo", "low", "high"))
            x = x / (1e6 if at == "steps" else 1)
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            panel.plot(x, elo, color=colour, linewidth=1.8, label=run)
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


if __name__ == "__main__":
    main()
