"""Makes docs/pictures/connect_four.gif again: the committed champion of connect four plays a game against a tree search
that plays 1,000 random games for each move.

    python docs/readme_picture.py

Needs Pillow.
"""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from polyplay.acting.play import PlayOptions  # noqa: E402
from polyplay.evaluation.agent import find_agent  # noqa: E402
from polyplay.evaluation.matches import named_player, player_of_agent  # noqa: E402
from polyplay.games import records as kernels  # noqa: E402
from polyplay.games.boards import Game  # noqa: E402

OUT = ROOT / "docs" / "pictures" / "connect_four.gif"
SEED, SIMULATIONS, OTHER = 0, 400, "mcts:1000"
CELL, EDGE, HEAD, FINE = 46, 10, 30, 3  # pixels; all is drawn FINE times as large
BOARD, HOLE, INK = "#2b5d9b", "#f4f6f8", "#222222"
COLORS, NAMES = ("#f2b600", "#d2402f"), ("Polyplay's agent", "tree search, 1,000 rollouts")
STEP, LAST = 600, 4000  # milliseconds that a picture is shown


def play() -> tuple[list[np.ndarray], int]:
    """The board [6, 7] before the first move and after each, 1 for the champion and 2 for the search; who won."""
    found = find_agent(str(ROOT / "bench" / "champions" / "connect_four"))
    champion = player_of_agent(found, PlayOptions(0, SEED), SIMULATIONS)
    board, other = champion.board, named_player(OTHER, champion.board, "--against ")
    records, at, random = np.stack([board.new()]), np.arange(1), np.random.default_rng(SEED)
    boards = [cells_of(board, records[0])]
    for number, player in cycle(enumerate((champion, other), 1)):
        moves = player.moves(records, random.integers(2**63, size=1, dtype=np.uint64), at)
        result = board.play_all(records, at, moves)[0]
        boards.append(cells_of(board, records[0]))
        if result != kernels.GOES_ON:
            return boards, number if result == kernels.WON else 0
    raise AssertionError("a game ends")


def cells_of(board: Game, record: np.ndarray) -> np.ndarray:
    return board.stones(record).reshape(board.rows, board.columns).copy()


def four(board: np.ndarray) -> list[tuple[int, int]]:
    """The cells of a row of four; none: there is none."""
    for r, c in np.ndindex(board.shape):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(r + i * down, c + i * right) for i in range(4)]
            inside = all(0 <= y < board.shape[0] and 0 <= x < board.shape[1] for y, x in cells)
            if inside and board[r, c] and len({int(board[cell]) for cell in cells}) == 1:
                return cells
    return []


def draw(board: np.ndarray, before: np.ndarray | None) -> Image.Image:
    rows, columns = board.shape
    size = (columns * CELL + 2 * EDGE, rows * CELL + 2 * EDGE + HEAD)
    image = Image.new("RGB", (size[0] * FINE, size[1] * FINE), "white")
    pen = ImageDraw.Draw(image)
    pen.rounded_rectangle([0, HEAD * FINE, size[0] * FINE - 1, size[1] * FINE - 1], EDGE * FINE, fill=BOARD)
    won = four(board)
    for r, c in np.ndindex(board.shape):
        x, y, radius = EDGE + c * CELL + CELL // 2, HEAD + EDGE + r * CELL + CELL // 2, CELL * 0.41
        box = [FINE * v for v in (x - radius, y - radius, x + radius, y + radius)]
        new = before is not None and board[r, c] != before[r, c]
        ring = "white" if new or (r, c) in won else None
        pen.ellipse(box, fill=COLORS[board[r, c] - 1] if board[r, c] else HOLE, outline=ring, width=4 * FINE)
    at = EDGE
    font = ImageFont.load_default(13 * FINE)
    for color, name in zip(COLORS, NAMES, strict=True):
        pen.ellipse([FINE * v for v in (at, 8, at + 13, 21)], fill=color)
        pen.text((FINE * (at + 18), FINE * 6), name, fill=INK, font=font)
        at += 18 + int(pen.textlength(name, font=font) / FINE) + 14
    return image.resize(size, Image.Resampling.LANCZOS)


def main() -> None:
    boards, winner = play()
    pictures = [draw(board, before) for board, before in zip(boards, [None, *boards], strict=False)]
    colors = pictures[-1].quantize(32, dither=Image.Dither.NONE)  # the same for all: then little changes between two
    few = [picture.quantize(palette=colors, dither=Image.Dither.NONE) for picture in pictures]
    times = [STEP] * (len(few) - 1) + [LAST]
    few[0].save(OUT, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)
    print(f"{OUT}: {len(boards) - 1} moves, won by {winner}, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
