"""How well agents play that `polyplay train ftw` trained: against random play and bots, on held-out maps.

    python bench/ftw.py runs/ftw runs/selfplay_shaped runs/selfplay --matches 200

Of each run the agent with the highest Elo among its own. Half of the matches are played on each side. Runs, random play
and bots meet each other on one Elo scale, with random play at 0. Of `--checkpoints` of each run, evenly spaced in time,
the best agent meets random play and the bots: its Elo is on the same scale, beside how it behaves against random play.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.acting.match_ends import MatchEnds
from polyplay.acting.play import PlayOptions, load_player
from polyplay.acting.team_match import TeamPlayer, policy_player, random_player, scripted_player
from polyplay.cli.plot import COLOURS, FAINT, INK
from polyplay.common import checkpoint, tree
from polyplay.common.tree import Batch
from polyplay.envs import All, Envs
from polyplay.envs.bots import load_bot
from polyplay.envs.ctf.world import EVENTS
from polyplay.envs.spaces import fields
from polyplay.evaluation.elo import rate
from polyplay.evaluation.run_agents import RunAgent, find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament

AT_ONCE = 50  # matches in step
SHOWN = ("tagged_other", "tagged_carrier", "picked_up", "captured", "returned")
WHERE = ("own base", "their base", "beside teammate")  # shares of the time
NEAR, BASE = 2.0, 2.5  # cells: as in ftw_probes.py
OPPONENTS = ("random", *(f"bot:level{level}" for level in range(1, 6)))


class Played(NamedTuple):
    """Of matches [n], for each team: events [n, team, E], and what share of the time a player is where [n, team,
    WHERE]; and the first team's reward [n].
    """

    events: np.ndarray
    where: np.ndarray
    gained: np.ndarray


def player_of(name: str, envs: Envs, seed: int) -> TeamPlayer:
    return random_player(seed) if name == "random" else scripted_player(load_bot(envs.spec, name.removeprefix("bot:")))


def matches(envs: Envs, players: tuple[TeamPlayer, TeamPlayer], seed: int) -> Played:
    """AT_ONCE of them."""
    seats, teams = envs.spec.seats, np.array(envs.spec.sides)
    lanes = [np.flatnonzero(np.tile(teams, AT_ONCE) == team) for team in (0, 1)]
    events, gained = np.zeros((AT_ONCE, seats, len(EVENTS))), np.zeros((AT_ONCE, seats))
    where, rows = np.zeros((AT_ONCE, seats, len(WHERE))), np.zeros(AT_ONCE)
    on, ends = np.ones(AT_ONCE, bool), MatchEnds(np.arange(AT_ONCE * seats).reshape(AT_ONCE, seats))
    opened = replace(envs, lanes=AT_ONCE * seats, batching=All(), groups=1, agents=1, active=0, workers=0)
    action = tree.zeros(fields(envs.spec.action), (AT_ONCE * seats,))
    with closing(opened.open(seed)) as pool:
        chosen = [player(pool, own) for player, own in zip(players, lanes, strict=True)]
        while on.any():
            which, step = pool.recv()
            events[on] += step["events"].reshape(events.shape)[on]
            gained[on] += step["reward"].reshape(gained.shape)[on]
            on[ends.watch(np.arange(AT_ONCE * seats), step).whole] = False
            state = pool.state()
            assert state is not None, "a game of ours says its state"
            where[on] += whereabouts(state["game"])[on]
            rows += on
            for choose, own in zip(chosen, lanes, strict=True):
                tree.write(action, own, choose(tree.at(step, own)))
            pool.send(which, action)
    by_team = [np.stack([x[:, teams == team].sum(1) for team in (0, 1)], 1) for x in (events, where, gained)]
    shares = by_team[1] / (seats // 2) / rows[:, None, None]
    return Played(by_team[0], shares, by_team[2][:, 0])


def whereabouts(s: Batch) -> np.ndarray:
    """WHERE, for each seat of each match: bool [n, P, 3]."""
    at, half = s["at"], s["at"].shape[1] // 2
    to_base = np.linalg.norm(at[:, :, None] - s["base"][:, None], axis=-1) < BASE  # [n, P, team]
    own = np.concatenate([to_base[:, :half, 0], to_base[:, half:, 1]], 1)
    theirs = np.concatenate([to_base[:, :half, 1], to_base[:, half:, 0]], 1)
    gaps = np.linalg.norm(at[:, :, None] - at[:, None], axis=-1) + np.diag(np.full(2 * half, np.inf))
    beside = np.concatenate([gaps[:, :half, :half].min(2), gaps[:, half:, half:].min(2)], 1) < NEAR
    return np.stack([own, theirs, beside], 2)


def against(envs: Envs, agent: RunAgent, other: str, n: int) -> tuple[Row, float]:
    """Points of `n` matches with a 95 % interval, the share in which the agent's team captured, events a match, and
    where its players were; and the points' sum.
    """
    policy = load_player(agent.wired, agent.weights, agent=agent.agent)
    me, them = policy_player(policy, PlayOptions(n, 1)), player_of(other, envs, 2)
    points, mine, theirs, where = list[float](), list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for half in range(2):
        for k in range(n // 2 // AT_ONCE):
            played = matches(envs, (me, them) if half == 0 else (them, me), 1000 + k)
            points += ((1 + np.sign(played.gained if half == 0 else -played.gained)) / 2).tolist()
            mine.append(played.events[:, half])
            theirs.append(played.events[:, 1 - half])
            where.append(played.where[:, half])
    own, others, spread = np.concatenate(mine), np.concatenate(theirs), 1.96 * np.std(points) / math.sqrt(len(points))
    row: Row = {"against": other, "points": f"{np.mean(points):.1%} ± {spread:.1%}"}
    row["captures in"] = f"{np.mean(own[:, EVENTS.index('captured')] > 0):.0%}"
    row |= {name: _pair(own, others, EVENTS.index(name)) for name in SHOWN}
    row |= {name: f"{share:.0%}" for name, share in zip(WHERE, np.concatenate(where).mean(0), strict=True)}
    return row, float(np.sum(points))


def _pair(own: np.ndarray, others: np.ndarray, event: int) -> str:
    return f"{own[:, event].mean():.2f} : {others[:, event].mean():.2f}"


def spaced(run: Path, n: int) -> list[Path]:
    """So many of a run's checkpoints, from the first to the last but one, evenly spaced."""
    found = checkpoint.everything(run)[:-1]
    return [found[round(i)] for i in np.linspace(0, len(found) - 1, min(n, len(found)))]


def curve_of(run: Path, envs: Envs, n: int, matches_of: int) -> tuple[list[Row], np.ndarray]:
    """Of so many checkpoints how the best agent does against random play, and what it scored against each of OPPONENTS
    [checkpoints, 6].
    """
    rows, points = list[Row](), list[list[float]]()
    for path in spaced(run, n):
        (agent,) = find_agents(f"{path}:best")
        met = [against(envs, agent, other, matches_of) for other in OPPONENTS]
        rows.append({"agent": agent.agent, **met[0][0]})
        points.append([scored for _, scored in met])
    return rows, np.array(points).reshape(-1, len(OPPONENTS))


def elo_of(found: Row, points: np.ndarray, matches_of: int) -> list[Row]:
    """elo, low and high of checkpoints by their points against OPPONENTS, on the scale of the tournament `found`."""
    names = [player["name"] for player in found["players"]]
    all_names = names + [f"checkpoint {i}" for i in range(len(points))]
    scored, m = np.zeros((len(all_names), len(all_names))), len(names)
    scored[:m, :m] = [[(x or 0.0) * found["matches"] for x in row] for row in found["payoff"]]
    whom = [names.index(other) for other in OPPONENTS]
    scored[m:, whom] = points
    scored[np.ix_(whom, range(m, len(all_names)))] = matches_of - points.T
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
    parser.add_argument("--curve", type=int, default=100, help="matches of a checkpoint against each opponent")
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
    for run, name, player in zip(asked.runs, names, found["players"], strict=False):
        (agent,) = find_agents(name)
        envs = replace(agent.wired.envs, name=title, options={})
        rows = [against(envs, agent, other, asked.matches)[0] for other in OPPONENTS]
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
        lines[run.name].append({**last, **{k: player[k] for k in ("elo", "low", "high")}})
        text += ["Its checkpoints: Elo by random play and bots, the rest against random play:", "", *table(shown), ""]
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
