"""The commands of the Go Text Protocol, version 2, and of its analysing extensions, for an agent that searches.

It answers a pass with a pass only if the board as it stands is won: area scoring takes no dead stones off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from polyplay.acting.search.policy import SearchPolicy
from polyplay.acting.search.search import Finished, Search
from polyplay.cli.play.gtp.board import BLACK, WHITE, GtpBoard, GtpError
from polyplay.cli.play.gtp.sgf import read_game
from polyplay.cli.play.session import leaves_of
from polyplay.envs.boards.game import Go

ANALYSED = 10_000  # simulations of an analysis
COLOURS = {"b": BLACK, "black": BLACK, "w": WHITE, "white": WHITE}
STATUS = ("alive", "dead", "seki")
DIGITS = 9  # of a number, at most
LEFT = 40  # moves that the rest of the time is for, at least
RESERVE = 0.9  # of the time for a move


@dataclass
class Clock:
    """What time there is. Seconds; byo_stones 0 with byo > 0: no limit. `left`: the seconds that are left to a player
    and for how many stones, 0: main time; None: all of it.
    """

    main: float = 0.0
    byo: float = 0.0
    byo_stones: int = 0
    limited: bool = False

    def per_move(self, left: tuple[float, int] | None) -> float | None:
        """Seconds for the next move; None: no limit."""
        if not self.limited:
            return None
        seconds, stones = self._left(left)
        byo = self.byo / self.byo_stones if self.byo_stones else 0.0
        return RESERVE * (seconds / stones if stones else max(seconds / LEFT, byo))

    def after(self, left: tuple[float, int] | None, used: float) -> tuple[float, int]:
        """What is left after a move of so many seconds. The move that uses up the main time is the first of a byo-yomi
        period, and what it takes beyond the main time is taken from that.
        """
        seconds, stones = self._left(left)
        seconds -= used
        if not stones:
            if seconds > 0 or not self.byo_stones:
                return max(seconds, 0.0), 0
            seconds, stones = seconds + self.byo, self.byo_stones
        return (max(seconds, 0.0), stones - 1) if stones > 1 else (self.byo, self.byo_stones)

    def _left(self, left: tuple[float, int] | None) -> tuple[float, int]:
        return left if left is not None else (self.main, 0) if self.main else (self.byo, self.byo_stones)


class GtpEngine:
    """Answers commands, one line after another. `simulations`: of a search, where there is no time limit."""

    def __init__(self, policy: SearchPolicy, simulations: int, version: str):
        assert isinstance(policy.board, Go)
        self.policy, self.simulations, self.version = policy, simulations, version
        self.game, self.clock, self.left = GtpBoard(policy.board), Clock(), dict[int, tuple[float, int]]()
        self.over = False
        self.commands: dict[str, Callable[[list[str]], str | Iterator[str]]] = {
            name.removeprefix("do_").replace("__", "-"): getattr(self, name)
            for name in sorted(vars(type(self)))
            if name.startswith("do_")
        }

    def answer(self, line: str) -> Iterator[str]:
        """Pieces of the answer to a line; none to a line without a command. An analysis goes on until nobody asks for
        the next piece, and who stopped asking ends it by an empty line.
        """
        words = "".join(c if c.isprintable() else " " if c == "\t" else "" for c in line.partition("#")[0]).split()
        number = words.pop(0) if words and words[0].isdecimal() else ""
        if not words:
            return
        try:
            if words[0] not in self.commands:
                raise GtpError("unknown command")
            found = self.commands[words[0]](words[1:])
        except GtpError as e:
            yield f"?{number} {e}\n\n"
            return
        if isinstance(found, str):
            yield f"={number} {found}".rstrip() + "\n\n"
            return
        yield f"={number}\n"
        yield from found

    # --------------------------------------------------------------------------------------- what it is

    def do_protocol_version(self, words: list[str]) -> str:
        return "2"

    def do_name(self, words: list[str]) -> str:
        return "Polyplay"

    def do_version(self, words: list[str]) -> str:
        return self.version

    def do_known_command(self, words: list[str]) -> str:
        return "true" if words and words[0] in self.commands else "false"

    def do_list_commands(self, words: list[str]) -> str:
        return "\n".join(self.commands)

    def do_quit(self, words: list[str]) -> str:
        self.over = True
        return ""

    # ------------------------------------------------------------------------------------- what is played

    def do_boardsize(self, words: list[str]) -> str:
        if _integer(words) != self.game.size:
            raise GtpError("unacceptable size")  # its network knows one
        return self.do_clear_board([])

    def do_clear_board(self, words: list[str]) -> str:
        self.game.clear()
        self.left.clear()
        return ""

    def do_komi(self, words: list[str]) -> str:
        self.game.set_komi(_number(words))
        self.policy.use(self.game.board)
        return ""

    def do_play(self, words: list[str]) -> str:
        if len(words) < 2:
            raise GtpError("syntax error")
        self.game.play(_colour(words[0]), self.game.vertex(words[1]))
        return ""

    def do_undo(self, words: list[str]) -> str:
        self.game.undo()
        return ""

    def do_fixed_handicap(self, words: list[str]) -> str:
        cells = self.game.handicap(_integer(words))
        self.game.set_handicap(cells)
        return " ".join(map(self.game.name, cells))

    def do_place_free_handicap(self, words: list[str]) -> str:
        stones = _integer(words)
        if stones < 2:
            raise GtpError("invalid number of stones")
        most = max((n for n in range(2, min(stones, 9) + 1) if self._has_handicap(n)), default=0)
        if not most:
            raise GtpError("invalid number of stones")
        return self.do_fixed_handicap([str(most)])

    def _has_handicap(self, stones: int) -> bool:
        try:
            return bool(self.game.handicap(stones))
        except GtpError:
            return False

    def do_set_free_handicap(self, words: list[str]) -> str:
        cells = [self.game.vertex(word) for word in words]
        if self.game.board.cells in cells:
            raise GtpError("bad vertex list")
        self.game.set_handicap(cells)
        return ""

    def do_loadsgf(self, words: list[str]) -> str:
        if not words:
            raise GtpError("syntax error")
        until = _integer(words[1:]) if len(words) > 1 and words[1].isdecimal() else None
        found = read_game(words[0], self.game.size, until)
        game = GtpBoard(self.game.board)
        if found.komi is not None:
            game.set_komi(found.komi)
        for number, (colour, action) in enumerate([*found.setup, *found.moves], 1 - len(found.setup)):
            try:
                game.play(colour, action)
            except GtpError as e:
                what = f"move {number}" if number > 0 else "the stone"
                raise GtpError(f"cannot load file: {what} {'-BW'[colour]} {game.name(action)}: {e}") from None
        self.game = game
        self.policy.use(game.board)
        return ""

    # ------------------------------------------------------------------------------------------- time

    def do_time_settings(self, words: list[str]) -> str:
        if len(words) < 3:
            raise GtpError("syntax error")
        main, byo, stones = float(_integer(words)), float(_integer(words[1:])), _integer(words[2:])
        self.clock, self.left = Clock(main, byo, stones, not (byo > 0 and stones == 0)), {}
        return ""

    def do_time_left(self, words: list[str]) -> str:
        if len(words) < 3:
            raise GtpError("syntax error")
        self.left[_colour(words[0])] = float(_integer(words[1:])), _integer(words[2:])
        return ""

    # ----------------------------------------------------------------------------------- its own moves

    def do_genmove(self, words: list[str]) -> str:
        colour, begun = _colour(words[0] if words else ""), time.monotonic()
        action = self._choose(colour)
        self.game.play(colour, action)
        if self.clock.limited:
            self.left[colour] = self.clock.after(self.left.get(colour), time.monotonic() - begun)
        return self.game.name(action)

    def do_reg_genmove(self, words: list[str]) -> str:
        return self.game.name(self._choose(_colour(words[0] if words else "")))

    def _choose(self, colour: int) -> int:
        record, seconds = self.game.position(colour), self.clock.per_move(self.left.get(colour))
        until = None if seconds is None else time.monotonic() + seconds
        self._simulate(self.simulations)
        steps = self.policy.grow(record[None])
        search = next(steps)
        while until is None or time.monotonic() < until:
            if next(steps, None) is None:
                break
        found = search.look(np.array([0]))
        action = int(search.choose(found)[0])
        ahead = self.game.lead() if colour == BLACK else -self.game.lead()
        if action == self.game.board.cells and self.game.passed and ahead <= 0:
            others = found.visits[0].astype(np.float64) + found.priors[0]
            others[action] = 0.0
            return int(others.argmax()) if found.legal[0, :-1].any() else action
        return action

    def _simulate(self, simulations: int) -> None:
        if (self.policy.simulations, self.policy.options.leaves) != (simulations, leaves_of(simulations)):
            self.policy.simulate(simulations, leaves_of(simulations))

    # ------------------------------------------------------------------------------------- how it stands

    def do_final_score(self, words: list[str]) -> str:
        lead = self.game.lead()
        return "0" if lead == 0 else f"{'B' if lead > 0 else 'W'}+{abs(lead):g}"

    def do_final_status_list(self, words: list[str]) -> str:
        """All stones are alive: the board is scored as it stands."""
        if not words or words[0] not in STATUS:
            raise GtpError("syntax error")
        cells = np.flatnonzero(self.game.stones()).tolist() if words[0] == "alive" else []
        return "\n".join(map(self.game.name, cells))

    def do_showboard(self, words: list[str]) -> str:
        return "\n" + self.game.drawing()

    # ------------------------------------------------------------------------------------- analysis

    def do_lz__analyze(self, words: list[str]) -> Iterator[str]:
        return self._analyse(words, lambda q: f"{round(5000 * (1 + q))}", lambda p: f"{round(10_000 * p)}")

    def do_kata__analyze(self, words: list[str]) -> Iterator[str]:
        """Without a score, which the network does not foresee."""
        return self._analyse(words, lambda q: f"{(1 + q) / 2:.6f}", lambda p: f"{p:.6f}")

    def _analyse(self, words: list[str], rate: Callable[[float], str], share: Callable[[float], str]) -> Iterator[str]:
        colour = next((COLOURS[word.lower()] for word in words if word.lower() in COLOURS), self._to_move())
        numbers = [_integer([word]) for word in words if word.isdecimal()]
        every = max(numbers[0] if numbers else 50, 5) / 100
        return self._lines(self.game.position(colour), every, rate, share)

    def _to_move(self) -> int:
        return 3 - self.game.moves[-1][0] if self.game.moves else int(self.game.record[0]) + 1

    def _lines(
        self, record: np.ndarray, every: float, rate: Callable[[float], str], share: Callable[[float], str]
    ) -> Iterator[str]:
        """A line whenever the interval is over, and an empty piece in between; without end."""
        self._simulate(ANALYSED)
        shown, line = time.monotonic(), ""
        for search in self.policy.grow(record[None]):
            if time.monotonic() < shown + every:
                yield ""
                continue
            shown, line = time.monotonic(), self._line(search, rate, share)
            yield line
        while True:
            time.sleep(min(every, 0.05))
            if time.monotonic() >= shown + every:
                shown = time.monotonic()
                yield line or self._line(search, rate, share)
            else:
                yield ""

    def _line(self, search: Search, rate: Callable[[float], str], share: Callable[[float], str]) -> str:
        found: Finished = search.look(np.array([0]))
        order = [int(a) for a in np.argsort(-found.visits[0], kind="stable") if found.visits[0, a]]
        parts = []
        for i, action in enumerate(order):
            q, name = float(found.q[0, action]), self.game.name(action)
            parts.append(
                f"info move {name} visits {found.visits[0, action]} winrate {rate(q)} "
                f"prior {share(float(found.priors[0, action]))} lcb {rate(q)} order {i} pv "
                + " ".join(map(self.game.name, search.principal_variation(0, action)))
            )
        return " ".join(parts) + "\n" if parts else ""  # an empty line would end the answer


def _colour(word: str) -> int:
    if word.lower() not in COLOURS:
        raise GtpError("syntax error" if not word else "invalid color")
    return COLOURS[word.lower()]


def _integer(words: list[str]) -> int:
    if not words or not words[0].isdecimal() or len(words[0]) > DIGITS:
        raise GtpError("syntax error")
    return int(words[0])


def _number(words: list[str]) -> float:
    try:
        found = float(words[0])
    except (ValueError, IndexError):
        raise GtpError("syntax error") from None
    if not abs(found) < 1e6:
        raise GtpError("syntax error")
    return found
