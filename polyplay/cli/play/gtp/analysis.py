"""Lines of an analysis, as Leela Zero and KataGo write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from polyplay.acting.search.search import Finished, Search


class Form(NamedTuple):
    """How an extension writes a mean value from -1 to 1 as a win rate, and a prior."""

    rate: Callable[[float], str]
    prior: Callable[[float], str]


LEELA = Form(lambda q: f"{round(5000 * (1 + q))}", lambda p: f"{round(10_000 * p)}")
KATA = Form(lambda q: f"{(1 + q) / 2:.6f}", lambda p: f"{p:.6f}")


def by_choice(search: Search, found: Finished) -> list[int]:
    """The visited moves of one search: its own choice, then by visits; equal ones as it ranks them itself.

    A Gumbel search ranks by its improved policy, others by priors.
    """
    rank = search.targets(found)[0] if search.options.halves else found.priors[0]
    moves = [int(action) for action in np.flatnonzero(found.visits[0])]
    chosen = int(search.choose(found)[0])
    return sorted(moves, key=lambda a: (a != chosen, -found.visits[0, a], -rank[a], a))


def analysis_line(search: Search, name: Callable[[int], str], form: Form) -> str:
    """What the search of one game has found so far; empty before the first visit: an empty line would end the answer.

    It has no score, which the network does not foresee.
    """
    found, parts = search.look(np.array([0])), list[str]()
    for order, action in enumerate(by_choice(search, found)):
        rate, prior = form.rate(float(found.q[0, action])), form.prior(float(found.priors[0, action]))
        parts.append(
            f"info move {name(action)} visits {found.visits[0, action]} winrate {rate} prior {prior} lcb {rate} "
            f"order {order} pv " + " ".join(map(name, search.principal_variation(0, action)))
        )
    return " ".join(parts) + "\n" if parts else ""
