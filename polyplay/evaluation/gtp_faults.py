"""What Go programs did wrong in matches, and how their games came out, for people. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from polyplay.common.files import Row


@dataclass(frozen=True)
class GtpFault:
    """Why a program lost a game by name. game: of a match, from 1 on; move: of the game, from 1 on."""

    program: str
    against: str
    game: int
    move: int
    what: str

    def __str__(self) -> str:
        return f"{self.program} lost game {self.game} against {self.against} at move {self.move}: it {self.what}"


def program_line(about: Row) -> str:
    """What came of a program's games, in one line for people."""
    said, lost = f"{about['program']}: agreed on {about['agreed']} of {about['scored']} winners", len(about["faults"])
    return f"{said}, lost {lost} game{'s' * (lost != 1)} by its own fault" if lost else said
