"""How an agent does against GNU Go at some of its levels, with both colours: its points of N games.

    python bench/gnugo.py runs/go9 --games 100 --levels 0 1 10 --simulations 400

Every opening of two random moves is played with both colours. Our rules decide on moves and score: GNU Go is told to
capture all dead stones before it passes (FLAGS). Its final_score is asked for after every game of two passes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from common import RESULTS, Row, about, command_line, lines_about, publish, table, wilson

from polyplay.evaluation.agent import find_agent
from polyplay.evaluation.gtp import GtpPlayer, programs_running
from polyplay.evaluation.matches import (
    BoardPlayer,
    PlayerOptions,
    both_colors,
    named_player,
    play_match,
    player_of_agent,
)

FLAGS = "--mode gtp --chinese-rules --capture-all-dead --positional-superko"
PLIES = 2


class Progress:
    """Prints every tenth game of a match, which can take an hour. See match.Watch."""

    def __init__(self, games: int):
        self.games, self.over, self.points = games, 0, 0.0

    def __call__(self, found: dict[int, float], moves: int) -> bool:
        for points in found.values():
            self.over, self.points = self.over + 1, self.points + points
            if self.over % 10 == 0:
                print(f"{self.points:g} points of {self.over} games, {self.games} in all", flush=True)
        return True


def against(agent: BoardPlayer, name: str, games: int, seed: int) -> tuple[Row, list[str]]:
    """A row of the table, and by what faults the program lost games."""
    other = named_player(name, agent.board, "bench/gnugo.py: ")
    program = other.moves
    assert isinstance(program, GtpPlayer)
    with programs_running([program]):
        points = play_match(agent, other, both_colors(agent.board, games, PLIES, seed), seed, Progress(games))
    low, high = (games * end for end in wilson(float(points.mean()), games))
    row = {"points": float(points.sum()), "of": games, "95 % interval": f"{low:.1f} to {high:.1f}"}
    row |= {"agreed": f"{program.agreed} of {program.scored}", "faults": len(program.faults)}
    return row, program.faults


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("run", help="a run of game:go, or one of its checkpoints")
    parser.add_argument("--games", type=int, default=100, help="against each level, an even number")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--simulations", type=int, default=None, help="of each move; default: the run's own")
    parser.add_argument("--program", default="gnugo", help="GNU Go's name or path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "gnugo")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    agent = player_of_agent(find_agent(asked.run), PlayerOptions(asked.simulations, asked.seed))
    rows, faults = list[Row](), list[str]()
    for level in asked.levels:
        name = f"gtp:{asked.program} {FLAGS} --level {level}"
        found, lost = against(agent, name, asked.games, asked.seed)
        rows.append({"GNU Go's level": level, **found})
        faults += lost
    what = about()
    text = ["# Against GNU Go", "", *lines_about(what), ""]
    text += [f"`{Path(asked.run).name}`, {agent.about['checkpoint']}, game:{agent.board.name};"]
    text += [f"{'its own' if asked.simulations is None else asked.simulations} simulations a move;"]
    text += [f"`gnugo {FLAGS} --level N`.", "", *table(rows), ""]
    text += ["*agreed*: in how many games of two passes GNU Go's score names our winner."]
    text += ["*faults*: games that it lost by its own fault.", *(f"- {fault}" for fault in faults)]
    publish(asked.out, {**what, "rows": rows, "faults": faults, "agent": agent.about}, text)


if __name__ == "__main__":
    main()
