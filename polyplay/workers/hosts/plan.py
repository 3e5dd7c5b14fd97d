"""Who would be on which machine, in words, and whether the machines have what that takes. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyplay.common.errors import UserError
from polyplay.workers.hosts.engine import MachineInfo
from polyplay.workers.hosts.machine import Machine
from polyplay.workers.hosts.places import Places
from polyplay.workers.role import Role
from polyplay.workers.sizing import threads_of

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew


def roles_elsewhere(places: Places, crew: Crew) -> list[Role]:
    """Those that have workers on other machines. Raises UserError: there are none."""
    roles = [role for role in crew.roles if places.goes(role)]
    if roles:
        return roles
    if any(places.moves(role) for role in crew.roles):
        raise UserError("--hosts: given, but --place leaves all workers on this machine; leave both out")
    text = "given, but this run has no workers that can be on another machine: one that acts and learns is alone"
    raise UserError(f"--hosts: {text}; take --replicas 2 or more, where the system has replicas")


def learner_is_away(places: Places, crew: Crew) -> bool:
    return any(role.learner and not role.learns_own and places.goes(role) for role in crew.roles)


def plan_in_words(places: Places, crew: Crew, infos: Sequence[MachineInfo]) -> dict[str, str]:
    """By machine, this one first. Raises UserError: a rule of `--place` means nothing here."""
    threads = {role.name: threads_of(role, crew) for role in crew.roles}
    places.check(infos, threads)
    cores = {info.name: f" ({info.cores} core{'s' * (info.cores != 1)})" for info in infos}
    return {name + cores.get(name, ""): _in_words(seats) for name, seats in places.plan(infos, threads).items()}


def check_memory(places: Places, crew: Crew, machines: Sequence[Machine]) -> None:
    """Raises UserError: the replays of who works on a machine are larger than its memory."""
    threads = {role.name: threads_of(role, crew) for role in crew.roles}
    plan = places.plan([machine.info for machine in machines], threads)
    sizes = {r.name: r.held_replay.bytes(batches=r.out is None) for r in crew.roles if r.held_replay is not None}
    for machine in machines:
        held = [sizes[name] for name, _ in plan[machine.info.name] if name in sizes]
        if sum(held) > (has := machine.handle.about["memory"]):
            what = f"{machine.info.name} has {has / 1e9:.1f} GB of memory, {len(held)} replays there take"
            raise UserError(f"--hosts: {what} {sum(held) / 1e9:.1f} GB; lower --capacity, or take more machines")


def _in_words(seats: list[tuple[str, int]]) -> str:
    """act 0-3 5, learn 0"""
    numbers: dict[str, list[int]] = {}
    for name, index in seats:
        numbers.setdefault(name, []).append(index)
    return ", ".join(f"{name} {_ranges(indices)}" for name, indices in numbers.items()) or "nobody"


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
