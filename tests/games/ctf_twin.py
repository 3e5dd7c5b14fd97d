"""The rules of capture the flag again, slow and plain: one match, one player after the other, by names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

YAW, PITCH = [-200, -33, 0, 33, 200], [-50, 0, 50]


@cache
def sine(turned: int) -> float:
    return round(math.sin(turned % 3600 * (2 * math.pi / 3600)), 12)


@cache
def cosine(turned: int) -> float:
    return round(math.cos(turned % 3600 * (2 * math.pi / 3600)), 12)


@dataclass(eq=False)
class Player:
    team: int
    home: tuple[float, float]
    x: float
    y: float
    yaw: int
    z: float = 0.0
    rises: float = 0.0
    pitch: int = 0
    loads: int = 0
    events: list[str] = field(default_factory=list)


@dataclass
class Flag:
    home: tuple[float, float]
    x: float
    y: float
    carrier: Player | None = None
    dropped: bool = False


class Match:
    def __init__(self, grid, base, spawn, yaw):
        self.walls = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell}
        self.size = len(grid)
        half = len(spawn) // 2
        self.players = [Player(int(i >= half), tuple(s), *s, int(yaw[i])) for i, s in enumerate(spawn)]
        self.flags = [Flag(tuple(b), *b) for b in base]
        self.score, self.age = [0, 0], 0

    def inside_wall(self, x: float, y: float) -> bool:
        left, right = math.floor(x - 0.25), math.floor(x + 0.25)
        top, bottom = math.floor(y - 0.25), math.floor(y + 0.25)
        return not self.walls.isdisjoint([(top, left), (top, right), (bottom, left), (bottom, right)])

    def sees(self, a: Player, b: Player) -> bool:
        """Whether the line between them passes through the inside of no wall."""
        for r, c in self.walls:
            enter, leave = 0.0, 1.0
            for at, to, low in ((a.x, b.x, c), (a.y, b.y, r)):
                if at == to:
                    if not low < at < low + 1:
                        enter, leave = 1.0, 0.0
                    continue
                one, two = sorted(((low - at) / (to - at), (low + 1 - at) / (to - at)))
                enter, leave = max(enter, one), min(leave, two)
            if enter < leave - 1e-9:  # else it touches a corner
                return False
        return True

    def move(self, p: Player, a) -> None:
        p.yaw = (p.yaw + YAW[a[0]]) % 3600
        p.pitch = max(-400, min(400, p.pitch + PITCH[a[1]]))
        right, ahead = a[2] - 1, a[3] - 1
        speed = 0.21 * (math.sqrt(0.5) if right and ahead else 1.0)
        x = p.x + speed * (ahead * cosine(p.yaw) - right * sine(p.yaw))
        if not self.inside_wall(x, p.y):
            p.x = x
        y = p.y + speed * (ahead * sine(p.yaw) + right * cosine(p.yaw))
        if not self.inside_wall(p.x, y):
            p.y = y
        if a[5] and p.z == 0:
            p.rises = 0.09
        p.z, p.rises = p.z + p.rises, p.rises - 0.012
        if p.z <= 0:
            p.z = p.rises = 0.0

    def victim(self, p: Player) -> Player | None:
        found = []
        for q in self.players:
            dx, dy = q.x - p.x, q.y - p.y
            ahead = dx * cosine(p.yaw) + dy * sine(p.yaw)
            aside = dy * cosine(p.yaw) - dx * sine(p.yaw)
            height = p.z + 0.5 + ahead * sine(p.pitch) / cosine(p.pitch) - q.z
            hit = q.team != p.team and 0 < ahead <= 8 and abs(aside) <= 0.3 and 0 <= height <= 0.7
            if hit and self.sees(p, q):
                found.append((ahead, q))
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def carries(self, p: Player) -> bool:
        return any(flag.carrier is p for flag in self.flags)

    def tell(self, p: Player, what: str) -> None:
        for q in self.players:
            who = "" if q is p else "teammate_" if q.team == p.team else "opponent_"
            q.events.append(who + what)

    @staticmethod
    def near(p: Player, x: float, y: float) -> bool:
        return (p.x - x) ** 2 + (p.y - y) ** 2 <= 0.6**2

    def step(self, actions) -> list[float]:
        """The seats' rewards; what happened to each is in its events."""
        self.age += 1
        for p, a in zip(self.players, actions, strict=True):
            p.events = []
            self.move(p, a)
        hits = []
        for p, a in zip(self.players, actions, strict=True):
            p.loads = max(p.loads - 1, 0)
            if a[4] and p.loads == 0:
                p.loads = 8
                if (q := self.victim(p)) is not None:
                    hits.append((p, q))
        for p, q in hits:
            p.events.append("tagged_carrier" if self.carries(q) else "tagged_other")
        for q in [p for p in self.players if any(p is hit for _, hit in hits)]:
            q.events.append("was_tagged_carrying" if self.carries(q) else "was_tagged")
            for flag in self.flags:
                if flag.carrier is q:
                    flag.carrier, flag.dropped, flag.x, flag.y = None, True, q.x, q.y
            q.x, q.y = q.home
            q.z, q.rises, q.pitch = 0.0, 0.0, 0
            angle = math.atan2(self.size / 2 - q.y, self.size / 2 - q.x)
            q.yaw = math.floor(angle / (2 * math.pi) * 3600 + 0.5) % 3600
        return self.touches()

    def touches(self) -> list[float]:
        for p in self.players:
            own = self.flags[p.team]
            if own.dropped and self.near(p, own.x, own.y):
                own.dropped, own.x, own.y = False, *own.home
                self.tell(p, "returned")
        for p in self.players:
            theirs = self.flags[1 - p.team]
            if theirs.carrier is None and self.near(p, theirs.x, theirs.y):
                theirs.carrier, theirs.dropped = p, False
                self.tell(p, "picked_up")
        gained = [0, 0]
        for flag, own in (self.flags, self.flags[::-1]):
            if flag.carrier is None:
                continue
            flag.x, flag.y = flag.carrier.x, flag.carrier.y
            at_home = own.carrier is None and not own.dropped
            if at_home and self.near(flag.carrier, *own.home):
                gained[flag.carrier.team] += 1
                self.tell(flag.carrier, "captured")
                flag.carrier, flag.x, flag.y = None, *flag.home
        self.score = [a + b for a, b in zip(self.score, gained, strict=True)]
        return [float(gained[p.team] - gained[1 - p.team]) for p in self.players]

    def facts(self, p: Player, length: int) -> list[float]:
        """What a player knows besides what it sees, in a match of so many steps."""
        lead, theirs = self.score[p.team] - self.score[1 - p.team], self.flags[1 - p.team]
        numbers = [lead / 5, 1 - self.age / length]
        for flag in (self.flags[p.team], theirs):
            away = flag.carrier is not None
            numbers += [not away and not flag.dropped, away, flag.dropped]
        return [*numbers, theirs.carrier is p, p.loads / 8, p.pitch / 400, p.z]
