"""The rules of the lane game again, slow and plain: one match, one unit after the other, by names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WIDTH = 36000
TERMS = ("win", "death", "experience", "gold", "health", "mana", "killed_hero", "last_hit")
TERMS += ("outer_tower", "inner_tower", "core")


@dataclass(eq=False)
class Unit:
    kind: str  # hero, creep, outer, inner, core
    side: int
    lane: int
    place: int  # in its team, or its slot
    x: int = 0
    y: int = 0
    health: int = 0
    most: int = 0
    ready: int = 0
    target: Unit | None = None

    @property
    def alive(self) -> bool:
        return self.health > 0

    def far(self, other: Unit) -> int:
        return (self.x - other.x) ** 2 + (self.y - other.y) ** 2

    def near(self, other: Unit, reach: int) -> bool:
        return self.far(other) <= reach**2


@dataclass(eq=False)
class Hero(Unit):
    mana: int = 0
    experience: int = 0
    level: int = 1
    gold: int = 0
    casts: dict[str, int] = field(default_factory=lambda: {"bolt": 0, "blast": 0, "heal": 0})
    returns: int = 0
    aim: Unit | None = None
    action: tuple[int, ...] = (0, 0, 0, 0)  # primary, unit, offset, delay
    events: dict[str, float] = field(default_factory=dict)

    @property
    def most_mana(self) -> int:
        return 100 + 10 * self.level

    @property
    def hit(self) -> int:
        return 18 + 2 * self.level + self.gold // 50


class Match:
    def __init__(self, team: int, lanes: int, repeat: int):
        self.team, self.lanes, self.repeat, self.age = team, lanes, repeat, 0
        self.wave = [[80] * lanes for _ in range(2)]
        self.heroes = [[Hero("hero", side, -1, i) for i in range(team)] for side in range(2)]
        self.creeps = [
            [[Unit("creep", side, lane, slot) for slot in range(6)] for lane in range(lanes)] for side in range(2)
        ]
        kinds = [(lane, kind) for lane in range(lanes) for kind in ("outer", "inner")] + [(-1, "core")]
        self.towers = [[Unit(kind, side, lane, -1) for lane, kind in kinds] for side in range(2)]

    # ------------------------------------------------------------------------------------ who is where

    def units(self, side: int) -> list[Unit]:
        return [*self.heroes[side], *(c for lane in self.creeps[side] for c in lane), *self.towers[side]]

    @property
    def everybody(self) -> list[Unit]:
        return self.units(0) + self.units(1)

    @property
    def players(self) -> list[Hero]:
        return self.heroes[0] + self.heroes[1]

    @property
    def middle(self) -> int:
        return 6000 + 4000 * (self.lanes - 1)

    @staticmethod
    def mirrored(side: int, x: int) -> int:
        return WIDTH - x if side else x

    def spawn(self, hero: Hero) -> tuple[int, int]:
        return self.mirrored(hero.side, 1500), self.middle + 400 * (2 * hero.place - self.team + 1)

    def open(self, unit: Unit) -> bool:
        towers = self.towers[unit.side]
        if unit.kind == "inner":
            return not next(t for t in towers if t.kind == "outer" and t.lane == unit.lane).alive
        return unit.kind != "core" or any(t.kind == "inner" and not t.alive for t in towers)

    def visible(self, unit: Unit) -> bool:
        """To the other side."""
        others = [u for u in self.units(1 - unit.side) if u.alive]
        return unit.alive and any(unit.near(u, 5000 if u.kind == "creep" else 8000) for u in others)

    def knows(self, hero: Hero, unit: Unit | None) -> bool:
        return unit is not None and unit.alive and (unit.side == hero.side or self.visible(unit))

    def creeps_shown(self, hero: Hero) -> list[Unit | None]:
        found = [c for side in (hero.side, 1 - hero.side) for lane in self.creeps[side] for c in lane if c.alive]
        found = [c for c in found if c.side == hero.side or self.visible(c)]
        found = sorted(found, key=hero.far)[: 8 * self.lanes]
        return [*found, *[None] * (8 * self.lanes - len(found))]

    def listing(self, hero: Hero) -> list[Unit | None]:
        allies: list[Unit | None] = [h for h in self.heroes[hero.side] if h is not hero] or [None]
        towers = self.towers[hero.side] + self.towers[1 - hero.side]
        return [*allies, *self.heroes[1 - hero.side], *self.creeps_shown(hero), *towers]

    # ------------------------------------------------------------------------------------------ a step

    def step(self, actions) -> bool:
        """What each hero has brought is in its events; whether a core has fallen."""
        aims = [self.listing(hero)[a[1]] for hero, a in zip(self.players, actions, strict=True)]
        seen = [self.knows(*pair) for pair in zip(self.players, aims, strict=True)]
        for hero, action, aim, known in zip(self.players, actions, aims, seen, strict=True):
            hero.action, hero.aim = tuple(action), aim if known else None
            hero.events = dict.fromkeys(TERMS, 0.0)
        before, over = [self.worth(hero) for hero in self.players], False
        for turn in range(self.repeat):
            over = self.tick(turn)
            if over:
                break
        for hero, old in zip(self.players, before, strict=True):
            for term, now in self.worth(hero).items():
                hero.events[term] += now - old[term]
        return over

    def worth(self, hero: Hero) -> dict[str, float]:
        x, towers = hero.health / hero.most, self.towers[1 - hero.side]
        gone = [(t.kind, (1 - t.health / t.most) * 2 / 3 + (0 if t.alive else 1 / 3)) for t in towers]
        return {
            "experience": hero.experience,
            "gold": hero.gold,
            "health": (x + 1 - (1 - x) ** 4) / 2,
            "mana": hero.mana / hero.most_mana,
            "outer_tower": sum(g for kind, g in gone if kind == "outer"),
            "inner_tower": sum(g for kind, g in gone if kind == "inner"),
            "core": 1 - towers[-1].health / towers[-1].most,
        }

    def tick(self, turn: int) -> bool:
        self.age += 1
        if self.age % 300 == 1:
            self.send_waves()
        for hero in self.players:
            self.recover(hero)
        if self.age % 8 == 1:
            for unit in self.everybody:
                if unit.alive and unit.kind not in ("hero", "core"):
                    unit.target = self.target(unit)
        living = [u for u in self.everybody if u.alive]
        acting = [h for h in self.players if h.alive and turn >= min(h.action[3], self.repeat - 1)]
        first = {id(h): turn == min(h.action[3], self.repeat - 1) for h in acting}
        others = [u for u in living if u.kind not in ("hero", "core")]
        aimed = {id(u): u.target if u.target is not None and u.target.alive else None for u in others}
        opened, frozen = {id(u): self.open(u) for u in living}, {id(u): u.health for u in living}
        for hero in acting:
            if hero.action[0] == 5 and first[id(hero)]:
                self.heal(hero, frozen)
        killers: dict[int, Hero | None] = {}
        for hero in acting:
            for victim, damage in self.strikes(hero, first[id(hero)], frozen, opened):
                self.hurt(victim, damage, hero, killers)
        reach = {"creep": 1200, "outer": 4500, "inner": 4500}
        moves: list[tuple[Unit, int, int, int]] = []
        for unit in others:
            victim = aimed[id(unit)]
            if victim is not None and unit.near(victim, reach[unit.kind]):
                if unit.ready <= self.age:
                    unit.ready = self.age + 30
                    self.hurt(victim, 6 if unit.kind == "creep" else 25, None, killers)
            elif unit.kind == "creep":
                x, y = (victim.x, victim.y) if victim is not None else self.way(unit)
                moves.append((unit, x - unit.x, y - unit.y, 80))
        for hero in acting:
            moves += self.walk(hero, frozen, opened)
        for unit, dx, dy, speed in moves:
            self.go(unit, dx, dy, speed)
        return self.bury(living, killers)

    def send_waves(self) -> None:
        for side in range(2):
            for lane, slots in enumerate(self.creeps[side]):
                for i, creep in enumerate([c for c in slots if not c.alive][:3]):
                    creep.x, creep.y = self.mirrored(side, 3000 - 400 * i), self.middle
                    creep.health = creep.most = self.wave[side][lane]
                    creep.ready, creep.target = 0, None

    def recover(self, hero: Hero) -> None:
        if not hero.alive:
            if self.age >= hero.returns:
                hero.x, hero.y = self.spawn(hero)
                hero.health, hero.mana, hero.returns = hero.most, hero.most_mana, 0
            return
        if self.age % 30 == 0:
            home = abs(self.mirrored(hero.side, hero.x) - 3000) <= 4000 and abs(hero.y - self.middle) <= 4000
            hero.health = min(hero.most, hero.health + (24 if home else 2))
            hero.mana = min(hero.most_mana, hero.mana + (24 if home else 2))

    def target(self, unit: Unit) -> Unit | None:
        foes = [u for u in self.units(1 - unit.side) if u.alive and self.open(u)]
        if unit.kind == "creep":
            return min((u for u in foes if unit.near(u, 4000)), key=unit.far, default=None)
        in_reach = [u for u in foes if unit.near(u, 4500)]
        creeps, heroes = ([u for u in in_reach if u.kind == kind] for kind in ("creep", "hero"))
        return min(creeps or heroes, key=unit.far, default=None)

    def pays(self, hero: Hero, ability: str, mana: int, wait: int) -> bool:
        able = hero.casts[ability] <= self.age and hero.mana >= mana
        if able:
            hero.mana -= mana
            hero.casts[ability] = self.age + wait
        return able

    def heal(self, hero: Hero, frozen: dict[int, int]) -> None:
        if self.pays(hero, "heal", 50, 300):
            for ally in self.heroes[hero.side]:
                if id(ally) in frozen and hero.near(ally, 3500):
                    ally.health = min(ally.most, ally.health + 70)

    def strikes(
        self, hero: Hero, first: bool, frozen: dict[int, int], opened: dict[int, bool]
    ) -> list[tuple[Unit, int]]:
        primary, aim = hero.action[0], hero.aim
        if aim is None or id(aim) not in frozen or aim.side == hero.side:
            return []
        if primary == 2 and opened[id(aim)] and hero.near(aim, 3500) and hero.ready <= self.age:
            hero.ready = self.age + 24
            return [(aim, hero.hit)]
        if not (first and aim.kind in ("hero", "creep") and hero.near(aim, 5000)):
            return []
        if primary == 4 and self.pays(hero, "blast", 40, 180):
            foes = [u for u in self.units(1 - hero.side) if id(u) in frozen and u.kind in ("hero", "creep")]
            return [(u, 40) for u in foes if aim.near(u, 1500)]
        return [(aim, 60)] if primary == 3 and self.pays(hero, "bolt", 30, 120) else []

    @staticmethod
    def offset(hero: Hero) -> tuple[int, int]:
        row, column = divmod(hero.action[2], 9)
        return (column - 4) * (-1000 if hero.side else 1000), (row - 4) * 1000

    def walk(self, hero: Hero, frozen: dict[int, int], opened: dict[int, bool]) -> list[tuple[Unit, int, int, int]]:
        primary, aim = hero.action[0], hero.aim
        if primary == 1:
            return [(hero, *self.offset(hero), 120)]
        if primary == 7 and (frozen[id(hero)] < hero.most or hero.mana < hero.most_mana):
            x, y = self.spawn(hero)
            return [(hero, x - hero.x, y - hero.y, 120)]
        if aim is None or id(aim) not in frozen:
            return []
        chases = primary == 2 and aim.side != hero.side and opened[id(aim)] and not hero.near(aim, 3500)
        return [(hero, aim.x - hero.x, aim.y - hero.y, 120)] if primary == 6 or chases else []

    def way(self, creep: Unit) -> tuple[int, int]:
        ahead, lane_y = self.mirrored(creep.side, creep.x), 6000 + 8000 * creep.lane
        if ahead < 6000:
            return self.mirrored(creep.side, 6000), lane_y
        if ahead < WIDTH - 6000:
            return self.mirrored(creep.side, WIDTH - 6000), lane_y
        return self.mirrored(creep.side, WIDTH - 3000), self.middle

    def go(self, unit: Unit, dx: int, dy: int, speed: int) -> None:
        far = math.sqrt(dx * dx + dy * dy)
        if far > speed:
            dx, dy = math.trunc(dx * speed / far), math.trunc(dy * speed / far)
        unit.x, unit.y = unit.x + dx, unit.y + dy
        if unit.kind == "hero":
            unit.x, unit.y = min(max(unit.x, 0), WIDTH), min(max(unit.y, 0), 2 * self.middle)

    @staticmethod
    def hurt(victim: Unit, damage: int, by: Hero | None, killers: dict[int, Hero | None]) -> None:
        was, victim.health = victim.health, victim.health - damage
        if was > 0 >= victim.health:
            killers[id(victim)] = by

    # ------------------------------------------------------------------------------------ what follows

    def bury(self, living: list[Unit], killers: dict[int, Hero | None]) -> bool:
        dead = [u for u in living if u.health <= 0]
        for unit in dead:
            by, foes = killers[id(unit)], self.heroes[1 - unit.side]
            if isinstance(unit, Hero):
                unit.events["death"] += 1
                unit.returns = self.age + 120 + 30 * unit.level
                self.reward(by, 160, "killed_hero")
                self.teach(unit, foes, 120 + 40 * unit.level)
            elif unit.kind == "creep":
                self.reward(by, 40, "last_hit")
                self.teach(unit, foes, 60)
            elif unit.kind == "core":
                for foe in foes:
                    foe.events["win"] += 1
            else:
                for foe in foes:
                    foe.gold += 80
        for unit in dead:
            unit.health = 0
        return any(u.kind == "core" for u in dead)

    @staticmethod
    def reward(by: Hero | None, gold: int, term: str) -> None:
        if by is not None:
            by.gold += gold
            by.events[term] += 1

    @staticmethod
    def teach(unit: Unit, foes: list[Hero], amount: int) -> None:
        near = [h for h in foes if h.alive and h.near(unit, 8000)]
        for hero in near:
            hero.experience += amount // len(near)
            while hero.level < 10 and hero.experience >= sum(120 * n for n in range(1, hero.level + 1)):
                hero.level += 1
                hero.mana += 10
                hero.most += 30
                hero.health += 30
