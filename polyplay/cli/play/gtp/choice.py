"""From a search's result to an answer: its move, a pass where no move gains anything, or giving up."""

from __future__ import annotations

import numpy as np

from polyplay.acting.search.search import Finished, Search
from polyplay.cli.play.gtp.board import GtpBoard

HOPELESS = -0.9  # a value below it: after the other's pass, moves into an area that has an owner are not tried


def outlook(found: Finished) -> float:
    """The better of the values of the root and of its best child, for the colour to move."""
    root = float(found.value[0])
    return max(root, float(found.best[0])) if found.visits[0].any() else root


def move_or_pass(game: GtpBoard, colour: int, search: Search, found: Finished) -> int:
    """The search's move, or a pass instead of a move that gains nothing.

    A move into the colour's own area changes no score. So it is left out once the other colour has passed, and once
    the colour is behind and every legal move is into an area that has an owner.
    """
    action, a_pass = int(search.choose(found)[0]), game.board.cells
    if action == a_pass:
        return action
    owners, behind = game.owners(), game.lead(colour) <= 0
    own, legal = owners[action] == colour, found.legal[0, :a_pass]
    if not game.passed(3 - colour):
        return a_pass if own and behind and not (legal & (owners == 0)).any() else action
    if behind and owners[action] and outlook(found) < HOPELESS:
        return a_pass
    if not own:
        return action
    useful = legal & (owners != colour)
    if not behind or not useful.any():
        return a_pass
    return int(np.where(useful, found.visits[0, :a_pass] + found.priors[0, :a_pass], -1.0).argmax())
