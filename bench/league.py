"""Where pure self-play cycles and past selves do not: rock-paper-scissors; and a league against scripted bots.

    python bench/league.py --runs runs/league

1. Two agents learn `toy:rps` by `--opponents latest` and by `past:0.5`. What a policy loses a game to its best answer
   is 0 for the uniform one and 1 for a pure one. Of each run: of the last policies, and of the mean of all past selves.
2. Two agents learn `toy:skirmish`, two against two, by `past:0.2` and by `uniform`, which seats the scripted bots as
   well; then `polyplay tournament` against these bots.

Trains what is not there yet. --collect: train nothing, say what is there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, about, command_line, lines_about, publish, table

from polyplay.acting.play import load_policy
from polyplay.evaluation.agent import RunAgent, find_agents
from polyplay.evaluation.tournament import TournamentOptions, play_tournament

RPS = "--env toy:rps --steps 400k --selves 50"
SKIRMISH = "--env toy:skirmish --loss ppo --lanes 64 --batch 32"
SKIRMISH += " --network separate --epochs 4 --learning-rate 2e-3 --lam 0.9 --entropy-cost 0.03"
OTHERS = ("bot:opposite", "bot:focus", "random")
RULES = ("latest", "past:0.5")
OPPONENTS = {"past:0.2": "1M", "uniform": "2M"}  # and agent steps
PAYOFF = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)  # of row against column: rock, paper, scissors


def train(words: str, seed: int, directory: Path) -> None:
    command = ["polyplay", "train", "league", *words.split(), "--seed", str(seed), "--quiet"]
    subprocess.run([sys.executable, "-m", *command, "--resume", "auto", "--run", str(directory)], check=True)


def mixture(agent: RunAgent) -> np.ndarray:
    """float64 [3]: how probable each action is."""
    policy = load_policy(agent.wired, agent.weights, agent.agent)
    rows = {"obs": torch.ones(1, 3, 1), "reward": torch.zeros(1, 3), "first": torch.ones(1, 3, dtype=torch.bool)}
    with torch.no_grad():
        out = policy.unroll({**rows, "action": torch.arange(3)[None]}, policy.initial(3))
    return out["logp"][0].exp().double().numpy()


def loss(p: np.ndarray) -> float:
    """What a policy loses a game to its best answer."""
    return float((PAYOFF @ p).max())


def cycles(rule: str, seed: int, directory: Path) -> dict[str, Any]:
    last = [loss(mixture(agent)) for agent in find_agents(str(directory))]
    selves = [find_agents(str(path))[0] for path in sorted((directory / "selves").glob("*.safetensors"))]
    each = [mixture(agent) for agent in selves]
    row = {"opponents": rule, "seed": seed, "last policies": round(statistics.fmean(last), 3), "past selves": len(each)}
    row |= {"a past self, median": round(statistics.median(map(loss, each)), 3)}
    return row | {"mean of past selves": round(loss(np.mean(each, 0)), 3)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/league"), help="where leagues are trained")
    parser.add_argument("--matches", type=int, default=400)
    parser.add_argument("--collect", action="store_true")
    asked = parser.parse_args()
    rows, against = [], []
    for seed in asked.seeds:
        for rule in RULES:
            directory = asked.runs / f"rps-{rule.partition(':')[0]}-{seed}"
            if not asked.collect:
                train(f"{RPS} --opponents {rule}", seed, directory)
            if directory.exists():
                rows.append(cycles(rule, seed, directory))
        for rule, steps in OPPONENTS.items():
            directory = asked.runs / f"skirmish-{rule.partition(':')[0]}-{seed}"
            if not asked.collect:
                train(f"{SKIRMISH} --opponents {rule} --steps {steps}", seed, directory)
            if directory.exists():
                names = [agent.name for agent in find_agents(str(directory))]
                found = play_tournament([*names, *OTHERS], TournamentOptions(matches=asked.matches, seed=seed))
                against.append({"opponents": rule, "steps": steps, "seed": seed, **_against_bot(found)})
    what = about()
    text = ["# Self-play, past selves, and scripted bots", "", *lines_about(what), ""]
    text += [
        f"Rock-paper-scissors: `polyplay train league {RPS} --opponents RULE --seed SEED`. What a policy loses a game"
    ]
    text += ["to its best answer (0: the uniform policy, 1: a pure one):", "", *table(rows), ""]
    text += [f"Two against two: `polyplay train league {SKIRMISH} --opponents RULE --steps STEPS --seed SEED`; points"]
    text += [f"against the scripted bots in {asked.matches} matches, sides swapped:", "", *table(against)]
    publish(RESULTS / "league", {**what, "rows": rows, "against": against}, text)


def _against_bot(found: dict[str, Any]) -> dict[str, Any]:
    """Points a match of each agent against each of the others."""
    agents = found["payoff"][: -len(OTHERS)]
    return {
        f"agent {i}, {other}": row[j - len(OTHERS)] for i, row in enumerate(agents) for j, other in enumerate(OTHERS)
    }


if __name__ == "__main__":
    main()
