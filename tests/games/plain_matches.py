"""Slow plain twins of the toys with several players, and of the pool that serves them: loops over matches and seats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyplay.envs.base_pool import Seating
from polyplay.games.toys import game_streams

NOTHING = {"reward": 0.0, "terminated": False, "truncated": False, "over": False, "first": True}


class PlainRockPaperScissors:
    seats = 2
    beats = ((0, 2), (1, 0), (2, 1))  # paper, 1, beats rock, 0

    def __init__(self, uniform: Callable[[], float], rounds: int = 1):
        self.left, self.here = rounds, [True, True]

    def step(self, actions: list[int], uniform: Callable[[], float]) -> list[dict]:
        self.left -= 1
        a, b = actions
        reward = ((a, b) in self.beats) - ((b, a) in self.beats)
        self.here = [self.left > 0] * 2
        return [{"reward": r, "terminated": self.left == 0, "truncated": False} for r in (reward, -reward)]

    def see(self, seat: int) -> list[float]:
        return [1.0]


class PlainSkirmish:
    seats = 4

    def __init__(self, uniform, health: int = 8, accuracy: float = 0.75, steps: int = 100, late: int = 0):
        self.full, self.accuracy, self.steps, self.late = health, accuracy, steps, late
        self.health, self.here, self.age = [health] * 4, [True, late == 0] * 2, 0

    def enemies(self, seat: int) -> list[int]:
        return [2, 3] if seat < 2 else [0, 1]

    def step(self, actions: list[int], uniform: Callable[[], float]) -> list[dict]:
        was, self.age = list(self.here), self.age + 1
        by: dict[int, list[int]] = {seat: [] for seat in range(4)}  # who hit each unit
        for seat in range(4):
            lands = uniform() < self.accuracy
            whom = self.enemies(seat)[actions[seat]]
            if lands and was[seat] and was[whom]:
                by[whom].append(seat)
        rows = [{"reward": 0.0, "events": [0, 0, 0]} for _ in range(4)]
        for whom, hitters in by.items():
            self.health[whom] = max(0, self.health[whom] - {0: 0, 1: 1, 2: 4}[len(hitters)])
            dead = was[whom] and self.health[whom] == 0
            for seat in hitters:
                rows[seat]["events"][0] += 1
                rows[seat]["events"][1] += dead
                rows[seat]["reward"] += 0.5 / len(hitters) if dead else 0.0
            if dead:
                rows[whom]["events"][2] = 1
                rows[whom]["reward"] -= 0.5
                self.here[whom] = False
        won = not any(self.here[:2]) or not any(self.here[2:])
        for seat in range(4):
            mate, dead = seat ^ 1, was[seat] and self.health[seat] == 0
            rows[seat]["team_reward"] = (rows[seat]["reward"] + rows[mate]["reward"]) / 2
            rows[seat]["terminated"] = dead or won
            rows[seat]["truncated"] = self.age == self.steps
            if won or self.age == self.steps:
                self.here[seat] = False
            elif self.age == self.late and seat % 2 == 1:
                self.here[seat] = True
        return rows

    def see(self, seat: int) -> list[float]:
        who = [seat, seat ^ 1, *self.enemies(seat)]
        shown = [0.0 if unit % 2 and self.age < self.late else self.health[unit] / self.full for unit in who]
        return [float(seat % 2), *shown]


class PlainVisitors:
    """Of visitors.Visitors."""

    seats = 3

    def __init__(self, uniform: Callable[[], float]):
        self.age = 0
        draws = [[uniform() for _ in range(3)] for _ in range(3)]  # what, of whom
        self.come = [0, *(int(3 * u) for u in draws[0][1:])]
        self.stay = [3 + int(3 * draws[1][0]), *(1 + int(3 * u) for u in draws[1][1:])]
        self.why = [int(3 * u) for u in draws[2]]
        self.here = [come == 0 for come in self.come]

    def step(self, actions: list[int], uniform: Callable[[], float]) -> list[dict]:
        self.age += 1
        rows = []
        for seat in range(3):
            end = self.age == self.come[seat] + self.stay[seat]
            rows.append({"reward": self.age * 10.0 + actions[seat]})
            rows[-1] |= {"terminated": end and self.why[seat] != 1, "truncated": end and self.why[seat] != 0}
            self.here[seat] = self.come[seat] <= self.age < self.come[seat] + self.stay[seat]
        return rows

    def see(self, seat: int) -> dict:
        return {"age": self.age, "seat": [float(seat)]}

    def legal(self, seat: int) -> list[bool]:
        return [not self.here[seat] or choice != self.age % 3 for choice in range(3)]


class PlainPool:
    """Rows of lanes, each a dict; `step` when all lanes of all matches were answered."""

    def __init__(self, kind: Callable, lanes: int, agents: int = 1, seed: int = 0, lane: int = 0, **options):
        self.make = lambda uniform: kind(uniform, **options)
        self.seating = Seating(lanes, kind.seats, agents, seed, lane)
        self.streams = [int(game_streams(seed, lane, lanes)[own[0]]) for own in self.seating.own]
        self.games: list = [None] * self.seating.matches
        self.rows: list[dict] = [{} for _ in range(lanes)]
        self.held, self.rests = False, [False] * self.seating.matches
        for m in range(self.seating.matches):
            self.begin(m)

    def uniform(self, m: int) -> Callable[[], float]:
        def draw() -> float:
            x = self.streams[m] = (self.streams[m] + 0x9E3779B97F4A7C15) % 2**64
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
            return ((x ^ (x >> 31)) >> 11) / 2**53

        return draw

    def begin(self, m: int) -> None:
        self.games[m], self.rests[m] = self.make(self.uniform(m)), False
        self.seating.draw(np.array([m]))
        for seat, lane in enumerate(self.seating.lanes[m]):
            self.rows[lane] = {**self.seen(m, seat), **NOTHING}

    def seen(self, m: int, seat: int) -> dict:
        game = self.games[m]
        return {"obs": game.see(seat), **({"mask": game.legal(seat)} if hasattr(game, "legal") else {})}

    def step(self, actions: np.ndarray) -> None:
        for m, game in enumerate(self.games):
            lanes = self.seating.lanes[m]
            if any(game.here):
                was = list(game.here)
                rows = game.step([int(actions[lane]) for lane in lanes], self.uniform(m))
                for seat, lane in enumerate(lanes):
                    row = rows[seat] if was[seat] else {}
                    over = row.get("terminated", False) or row.get("truncated", False)
                    flags = {"truncated": row.get("truncated", False) and not row["terminated"]} if row else {}
                    some = {"over": over, "first": not was[seat]}
                    self.rows[lane] = {**self.seen(m, seat), **NOTHING, **row, **flags, **some}
            elif self.held:
                self.rests[m] = True
                for lane in lanes:
                    self.rows[lane] = {**{k: v for k, v in self.rows[lane].items() if k in ("obs", "mask")}, **NOTHING}
            else:
                self.begin(m)
