"""How well agents play that `polyplay train ftw` trained: against random play and bots, on held-out maps.

    python bench/ftw.py runs/ftw runs/selfplay_shaped --matches 200

Of each run the agent with the highest Elo, of each checkpoint that is there. Half of the matches are played on each
side. The newest ones also meet each other, random play and the bots, on one Elo scale with random play at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, Row, about, command_line, lines_about, publish, table

from polyplay.acting.match_ends import MatchEnds
from polyplay.acting.play import PlayOptions, load_player
from polyplay.acting.team_match import TeamPlayer, policy_player, random_player, scripted_player
from polyplay.common import checkpoint, tree
from polyplay.envs import All, Envs
from polyplay.envs.bots import load_bot
from polyplay.envs.ctf.world import EVENTS
from polyplay.envs.spaces import fields
from polyplay.evaluation.run_agents import RunAgent, find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament

AT_ONCE = 50  # matches in step
SHOWN = ("tagged_other", "tagged_carrier", "picked_up", "captured", "returned")
OPPONENTS = ("random", *(f"bot:level{level}" for level in range(1, 6)))


def player_of(name: str, envs: Envs, seed: int) -> TeamPlayer:
    return random_player(seed) if name == "random" else scripted_player(load_bot(envs.spec, name.removeprefix("bot:")))


def matches(envs: Envs, players: tuple[TeamPlayer, TeamPlayer], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of AT_ONCE matches: events [matches, team, E], and the first team's reward."""
    seats, teams = envs.spec.seats, np.array(envs.spec.sides)
    lanes = [np.flatnonzero(np.tile(teams, AT_ONCE) == team) for team in (0, 1)]
    events, gained = np.zeros((AT_ONCE, seats, len(EVENTS))), np.zeros((AT_ONCE, seats))
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
            for choose, own in zip(chosen, lanes, strict=True):
                tree.write(action, own, choose(tree.at(step, own)))
            pool.send(which, action)
    return np.stack([events[:, teams == team].sum(1) for team in (0, 1)], 1), gained[:, teams == 0].sum(1)


def against(envs: Envs, agent: RunAgent, other: str, n: int) -> Row:
    """Points of `n` matches with a 95 % interval, the share in which the agent's team captured, and events a match."""
    policy = load_player(agent.wired, agent.weights, agent=agent.agent)
    me, them = policy_player(policy, PlayOptions(n, 1)), player_of(other, envs, 2)
    points, mine, theirs = list[float](), list[np.ndarray](), list[np.ndarray]()
    for half in range(2):
        for k in range(n // 2 // AT_ONCE):
            events, gained = matches(envs, (me, them) if half == 0 else (them, me), 1000 + k)
            points += ((1 + np.sign(gained if half == 0 else -gained)) / 2).tolist()
            mine.append(events[:, half])
            theirs.append(events[:, 1 - half])
    own, others, spread = np.concatenate(mine), np.concatenate(theirs), 1.96 * np.std(points) / math.sqrt(len(points))
    row: Row = {"against": other, "points": f"{np.mean(points):.1%} ± {spread:.1%}"}
    row["captures in"] = f"{np.mean(own[:, EVENTS.index('captured')] > 0):.0%}"
    return row | {name: _pair(own, others, EVENTS.index(name)) for name in SHOWN}


def _pair(own: np.ndarray, others: np.ndarray, event: int) -> str:
    return f"{own[:, event].mean():.2f} : {others[:, event].mean():.2f}"


def checkpoints(run: Path) -> Iterator[tuple[int, str]]:
    """Agent steps of each checkpoint that is there, and its best agent as `polyplay tournament` takes it."""
    for path in checkpoint.everything(run):
        yield int(checkpoint.manifest(path)["counters"]["steps"]), str(path)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--matches", type=int, default=200, help=f"of every two, a multiple of {2 * AT_ONCE}")
    parser.add_argument(
        "--curve", type=int, default=100, help="matches of each earlier checkpoint; 0: there is no curve"
    )
    asked = parser.parse_args()
    what, text, data = about(), ["# Capture the flag: who wins", ""], dict[str, Any]()
    text += [*lines_about(what), ""]
    for run in asked.runs:
        (agent,) = find_agents(f"{run}:best")
        title = f"{agent.wired.envs.title}+maps=held_out"
        envs = replace(agent.wired.envs, name=title, options={})
        rows = [against(envs, agent, other, asked.matches) for other in OPPONENTS]
        steps = int(checkpoint.manifest(checkpoint.everything(run)[-1])["counters"]["steps"])
        text += [f"`{run.name}`, agent {agent.agent} after {steps:,} agent steps of all, on `{title}`,"]
        text += [f"{asked.matches} matches; events a match, its : the other's.", ""]
        text += [*table(rows), ""]
        curve = [
            {"agent steps": f"{at:,}", "agent": found.agent, **against(envs, found, "random", asked.curve)}
            for at, path in (checkpoints(run) if asked.curve else ())
            for found in find_agents(f"{path}:best")
        ]
        text += ["Its checkpoints against random play:", "", *table(curve), ""] if len(curve) > 1 else []
        data[run.name] = {"rows": rows, "curve": curve}
    names = [*(f"{run}:best" for run in asked.runs), *OPPONENTS]
    found = play_tournament(names, TournamentOptions(matches=asked.matches, anchor="random", env=title))
    rated = [{k: p[k] for k in ("name", "elo", "low", "high")} for p in found["players"]]
    text += [f"One scale, {asked.matches} matches of every two:", "", *table(rated)]
    publish(RESULTS / "ftw", {**what, "runs": data, "tournament": found}, text)


if __name__ == "__main__":
    main()
