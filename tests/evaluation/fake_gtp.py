"""A small Go program that speaks GTP: `python fake_gtp.py [--log FILE] [MISTAKE …]`. It knows positional superko.

It plays the first legal cell that is no eye of its own, else passes. MISTAKE: COMMAND:N:DOES, at the Nth time that
COMMAND is sent since the program's start: `die`, `hang`, `chatter` (no answer but its own words), `endless`, `number`
(another one), or what it answers, `?` an error.
"""

import sys
import time
from pathlib import Path

LETTERS = "ABCDEFGHJKLMNOPQRST"


class Board:
    def __init__(self, size):
        self.size, self.stones, self.seen = size, {}, {frozenset()}

    def beside(self, cell):
        column, row = cell
        near = ((column - 1, row), (column + 1, row), (column, row - 1), (column, row + 1))
        return [(x, y) for x, y in near if 0 <= x < self.size and 0 <= y < self.size]

    def group(self, stones, cell):
        found, waiting = {cell}, [cell]
        while waiting:
            for near in self.beside(waiting.pop()):
                if stones.get(near) == stones.get(cell) and near not in found:
                    found.add(near)
                    waiting.append(near)
        return found, {near for at in found for near in self.beside(at)}

    def after(self, color, cell):
        """Stones after a move; None: it is illegal."""
        if cell in self.stones:
            return None
        stones = {**self.stones, cell: color}
        for at in [*(near for near in self.beside(cell) if stones.get(near, color) != color), cell]:
            if at in stones:
                group, around = self.group(stones, at)
                if all(near in stones for near in around):
                    if at == cell:
                        return None
                    stones = {k: v for k, v in stones.items() if k not in group}
        return None if frozenset(stones.items()) in self.seen else stones

    def play(self, color, cell):
        stones = self.stones if cell is None else self.after(color, cell)
        if stones is None:
            return False
        self.stones = stones
        self.seen.add(frozenset(stones.items()))
        return True

    def choose(self, color):
        for row in range(self.size):
            for column in range(self.size):
                cell = (column, row)
                eye = all(self.stones.get(near) == color for near in self.beside(cell))
                if not eye and self.after(color, cell) is not None:
                    return cell
        return None

    def lead(self, komi):
        total = -komi
        for column in range(self.size):
            for row in range(self.size):
                group, around = self.group(self.stones, (column, row))
                own = self.stones.get((column, row))
                reached = {own} if own else {self.stones.get(at) for at in around - group}
                total += {"b": 1, "w": -1}[reached.pop()] if len(reached) == 1 else 0
        return total


class Program:
    def __init__(self):
        self.board, self.komi = Board(19), 0.0

    def answer(self, name, words):
        if name == "boardsize":
            self.board = Board(int(words[0]))
        elif name == "clear_board":
            self.board = Board(self.board.size)
        elif name == "komi":
            self.komi = float(words[0])
        elif name == "play":
            if not self.board.play(words[0][0], self.cell(words[1])):
                return "? illegal move"
        elif name == "genmove":
            cell = self.board.choose(words[0][0])
            self.board.play(words[0][0], cell)
            return "= pass" if cell is None else f"= {LETTERS[cell[0]]}{cell[1] + 1}"
        elif name == "final_score":
            lead = self.board.lead(self.komi)
            return f"= {'B' if lead > 0 else 'W'}+{abs(lead)}" if lead else "= 0"
        return "= "

    def cell(self, word):
        return None if word.lower() == "pass" else (LETTERS.index(word[0]), int(word[1:]) - 1)


def misbehave(does):
    """What it does instead; where it does nothing, the answer."""
    if does == "die":
        print("a bug\nin line 1", file=sys.stderr)
        sys.exit(3)
    if does == "hang":
        time.sleep(1000)
    while does == "endless":
        print("= " + "x" * 100_000)
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
