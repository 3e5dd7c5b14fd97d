"""Choice of the machine on which each worker runs, by `--place` and by default rules. This module imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from polyplay.core.errors import UserError
from polyplay.workers.hosts.cluster import MachineInfo
from polyplay.workers.role import Role

RULE = re.compile(r"(\w+)(?:\[(\d+)(?:-(\d+))?\])?=(\S+)", re.ASCII)
WHERE = "here, others, even, a machine's name or address, or res:NAME"
HERE, OTHERS, EVEN = "here", "others", "even"


@dataclass(eq=False)
class Spot:
    """A machine that can run workers."""

    info: MachineInfo
    lost: str | None = None  # reason of the machine's loss, if it is lost
    threads: dict[int, int] = field(default_factory=dict)  # compute threads of each worker, by the worker's number

    @property
    def free(self) -> int:
        """Return the number of cores that no worker uses."""
        return self.info.cores - sum(self.threads.values())


S = TypeVar("S", bound=Spot)


@dataclass(frozen=True)
class PlaceRule:
    """A rule of `--place`: workers `first` to `last` of a role run at `where`. If `last` is None, all workers do."""

    role: str
    first: int
    last: int | None
    where: str

    def __str__(self) -> str:
        which = "" if self.last is None else f"[{self.first}-{self.last}]"
        return f"{self.role}{which}={self.where}"


def parse_places(text: str) -> tuple[PlaceRule, ...]:
    """Parse the rules of `--place`. Raises UserError if a rule is not valid."""
    rules = []
    for part in text.split(","):
        found = RULE.fullmatch(part.strip())
        if found is None or int(found[3] or found[2] or 0) < int(found[2] or 0):
            raise UserError(
                f"--place {part.strip()}: must be ROLE=WHERE, ROLE[A]=WHERE or ROLE[A-B]=WHERE, separated by commas; "
                f"WHERE is {WHERE}"
            )
        first = int(found[2] or 0)
        last = int(found[3] or first) if found[2] else None
        rules.append(PlaceRule(found[1], first, last, found[4]))
    return tuple(rules)


def _at(info: MachineInfo, where: str) -> bool:
    kind, _, name = where.partition(":")
    return where in (info.name, info.address) or (kind == "res" and name in info.resources)


def _acts(role: Role) -> bool:
    return role.envs is not None and role.source is None and role.if_lost == "replace"


def _remembers(role: Role) -> bool:
    """Tell whether a role's workers hold replay buffers, which actors fill and learners sample."""
    return role.source is None and "source" in role.edges() and role.held_replay is not None


def _learns(role: Role) -> bool:
    """Tell whether a role is a single learner whose data comes from separate actors."""
    return role.learner and role.n == 1 and role.source is not None and role.source.edge is not None


class Places:
    """Chooses a machine for each worker. If several rules name a worker, the last one counts. By default, actors run on
    other machines, replicas (workers that act and learn) run evenly on all machines, and other workers run on the main
    machine. If an actor's replay worker is on another machine, the actor runs there, unless a rule names another.
    """

    def __init__(self, rules: Sequence[PlaceRule] = (), roles: Sequence[Role] = ()):
        self.rules, self.roles = rules, roles
        self._seats: dict[tuple[str, int], Spot] = {}

    @staticmethod
    def moves(role: Role) -> bool:
        """Tell whether workers of a role can run on other machines. This is so for actors, replay workers, parameter
        shards, a single learner, and all replicas except the first.
        """
        alone = _acts(role) or _remembers(role) or "server" in role.edges() or _learns(role)
        return role.on == "process" and (alone or (role.learns_own and role.n > 1))

    def where(self, role: Role, index: int) -> str:
        """Return where a worker runs: `here` (the main machine), `others`, `even`, or a machine's name."""
        for rule in reversed(self.rules):
            if rule.role == role.name and (rule.last is None or rule.first <= index <= rule.last):
                return rule.where
        if not self.moves(role):
            return HERE
        return OTHERS if _acts(role) else EVEN if role.learns_own else HERE

    def machines_for(self, name: str, infos: Sequence[MachineInfo]) -> list[MachineInfo]:
        """Return the machines, other than the main machine, on which actors of role `name` may run."""
        where = next((r.where for r in reversed(self.rules) if r.role == name and r.last is None), OTHERS)
        return [info for info in infos if where in (OTHERS, EVEN) or _at(info, where)]

    def goes(self, role: Role) -> bool:
        """Tell whether any worker of a role runs on another machine."""
        return self.moves(role) and any(self.where(role, i) != HERE for i in range(role.n))

    def is_away(self, role: Role, index: int, machines: int) -> bool:
        """Tell whether a worker runs on another machine. `machines`: number of machines without the main machine."""
        where = self.where(role, index)
        here = where == HERE or (where == EVEN and self._turn(role, index, machines) == 0)
        return self.moves(role) and not here

    @staticmethod
    def _turn(role: Role, index: int, machines: int) -> int:
        """Return the number of a replica's machine, if replicas are spread evenly. The main machine is 0."""
        return index * (machines + 1) // role.n

    def choose(self, role: Role, index: int, spots: Sequence[S]) -> S | None:
        """Return a worker's machine: the last one, if it is not lost, else another one. None: no machine is left."""
        old = self._seats.get((role.name, index))
        if (chosen := next((spot for spot in spots if spot is old and spot.lost is None), None)) is None:
            chosen = self._find(role, index, spots)
            if chosen is not None:
                self._seats[role.name, index] = chosen
        return chosen

    def _find(self, role: Role, index: int, spots: Sequence[S]) -> S | None:
        where, there = self.where(role, index), [spot for spot in spots if spot.lost is None]
        if where == EVEN and spots[(turn := self._turn(role, index, len(spots)) - 1)].lost is None:
            return spots[turn]
        named = [spot for spot in there if _at(spot.info, where)]
        out = role.edges().get("out")
        memory = next((r for r in self.roles if out is not None and r.edges().get("source") is out), None)
        if not named and memory is not None and _remembers(memory):
            m = index % memory.n
            if self.is_away(memory, m, len(spots)):
                return self.choose(memory, m, spots)
        if role.learns_own and not role.asynchronous and not named:
            return spots[index * len(spots) // role.n]  # in order, so that each replica knows its neighbors
        return max(named or there, key=partial(self._room, role), default=None)

    def _room(self, role: Role, spot: Spot) -> tuple[float, int]:
        """Return a sort key that is larger for a machine with more room for a worker of this role."""
        n = sum(name == role.name and other is spot for (name, _), other in self._seats.items())
        return (spot.info.cores / (1 + n), -n) if _remembers(role) else (float(spot.free), 0)

    def check(self, infos: Sequence[MachineInfo], threads: Mapping[str, int]) -> None:
        """Check the rules of `--place`. Raises UserError if a rule does not fit this run, or a machine has too few
        cores. `threads`: compute threads per worker, by role.
        """
        for rule in self.rules:
            role = next((role for role in self.roles if role.name == rule.role), None)
            if role is None:
                names = ", ".join(role.name for role in self.roles)
                raise UserError(f"--place {rule}: this run has no role {rule.role}; choose from {names}")
            if rule.last is not None and rule.last >= role.n:
                has = f"{role.name} has {role.n} workers; must be within 0 to {role.n - 1}"
                raise UserError(f"--place {rule}: {has}")
            if rule.where == HERE:
                continue
            first = role.learns_own and self.where(role, 0) not in (HERE, EVEN)
            if not self.moves(role) or first:
                which = role.name if not self.moves(role) else f"{role.name} 0, which saves the run's checkpoints,"
                cure = f"remove it, or place others: {role.name}[1-{role.n - 1}]" if role.n > 1 else "remove it"
                raise UserError(f"--place {rule}: {which} stays on the main machine; {cure}")
            if rule.where not in (OTHERS, EVEN):
                self._check_cores(rule, [info for info in infos if _at(info, rule.where)], infos, threads)

    def _check_cores(
        self, rule: PlaceRule, there: list[MachineInfo], infos: Sequence[MachineInfo], threads: Mapping[str, int]
    ) -> None:
        if not there:
            raise UserError(f"--place {rule}: {_unknown(rule.where, infos)}")
        counts = {r.name: sum(self.where(r, i) == rule.where for i in range(r.n)) for r in self.roles}
        wanted, cores = sum(n * threads[name] for name, n in counts.items()), sum(info.cores for info in there)
        if wanted > cores:
            who = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
            has = f"{rule.where} has {cores} cores for {wanted} threads of {who}"
            raise UserError(f"--place {rule}: {has}; place fewer there, or leave the others to `others`")

    def plan(self, infos: Sequence[MachineInfo], threads: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
        """Return each machine's planned workers, the main machine first. `threads`: threads per worker, by role."""
        places, spots = Places(self.rules, self.roles), [*map(Spot, infos)]
        found: dict[str, list[tuple[str, int]]] = {HERE: [], **{info.name: [] for info in infos}}
        for role in self.roles:
            for index in range(role.n):
                away = places.is_away(role, index, len(infos))
                spot = places.choose(role, index, spots) if away else None
                if spot is not None:
                    spot.threads[len(spot.threads)] = threads[role.name]
                found[HERE if spot is None else spot.info.name].append((role.name, index))
        return found


def _unknown(where: str, infos: Sequence[MachineInfo]) -> str:
    kind, _, name = where.partition(":")
    if kind == "res":
        known, what = sorted({r for info in infos for r in info.resources}), f"no machine has the resource {name}"
    else:
        known, what = [i.name for i in infos], f"no machine is called {where}"
    return f"{what} (known: {', '.join(known) or 'none'}); must be {WHERE}"
