"""A small Go program that speaks GTP: `python fake_gtp.py [--log FILE] [MISTAKE …]`. It knows positional superko.

It plays the first legal cell that is no eye of its own, else passes. MISTAKE: COMMAND:N:DOES, at the Nth time that
COMMAND is sent since the program's start: `die`, `hang`, `chatter` (no answer but its own words), `number` (another
one), or what it answers, `?` an error.
"""

import sys
import time
from itertools import product
from pathlib import Path

from sgfmill.boards import Board
from sgfmill.common import format_vertex, move_from_vertex


class Program:
    def __init__(self):
        self.komi = 0.0
        self.clear(19)

    def clear(self, size):
        self.board, self.seen = Board(size), {()}

    def after(self, color, move):
        """The board after a move; None: it is illegal."""
        if self.board.get(*move) is not None:
            return None
        board = self.board.copy()
        board.play(*move, color)
        suicide = board.get(*move) is None
        return None if suicide or tuple(sorted(board.list_occupied_points())) in self.seen else board

    def play(self, color, move):
        found = self.board if move is None else self.after(color, move)
        if found is not None:
            self.board = found
            self.seen.add(tuple(sorted(found.list_occupied_points())))
        return found is not None

    def choose(self, color):
        side = range(self.board.side)
        for row, column in product(side, side):
            beside = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            eye = all(self.board.get(r, c) == color for r, c in beside if r in side and c in side)
            if not eye and self.after(color, (row, column)) is not None:
                return row, column
        return None

    def answer(self, name, words):
        if name == "boardsize":
            self.clear(int(words[0]))
        elif name == "clear_board":
            self.clear(self.board.side)
        elif name == "komi":
            self.komi = float(words[0])
        elif name == "play":
            if not self.play(words[0][0], move_from_vertex(words[1], self.board.side)):
                return "? illegal move"
        elif name == "genmove":
            move = self.choose(words[0][0])
            self.play(words[0][0], move)
            return f"= {format_vertex(move)}"
        elif name == "final_score":
            lead = self.board.area_score() - self.komi
            return f"= {'B' if lead > 0 else 'W'}+{abs(lead)}" if lead else "= 0"
        return "= "


def misbehave(does):
    """What it does instead; where it does nothing, the answer."""
    if does == "die":
        sys.exit(3)
    if does == "hang":
        time.sleep(1000)
    return {"chatter": "thinking …", "number": "=99 A1"}.get(does, does)


def main(words):
    log = Path(words[words.index("--log") + 1]) if "--log" in words else None
    mistakes = [word.split(":", 2) for word in words if ":" in word]
    program, counts = Program(), {}
    for line in sys.stdin:
        number, name, *rest = line.split() if line[0].isdecimal() else ("", *line.split())
        if log is not None:
            with log.open("a") as file:
                file.write(f"{' '.join([name, *rest])}\n")
        counts[name] = counts.get(name, 0) + 1
        wrong = [does for command, n, does in mistakes if command == name and int(n) == counts[name]]
        answer = misbehave(wrong[0]) if wrong else program.answer(name, rest)
        if answer[:2] in ("= ", "? "):
            answer = f"{answer[0]}{number}{answer[1:]}"
        print(answer, end="\n\n", flush=True)
        if name == "quit":
            break


if __name__ == "__main__":
    main(sys.argv[1:])
