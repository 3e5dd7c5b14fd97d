"""Draws a system from its wiring: which roles there are, what each holds, and so what flows from whom to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyplay.core.files import Row
from polyplay.core.worker import Arrow, Edge
from polyplay.workers.role import Role

if TYPE_CHECKING:
    from polyplay.workers.crew import Crew


def draw_diagram(crew: Crew) -> str:
    """One box per role, where there are several one per machine, then one line per thing that two roles share."""
    lines: list[str] = []
    for role in crew.roles:
        lines += [*_box(f"{role.name} × {role.n}", _holds(role)), ""]
    for machine, who in crew.fleet.plan(crew).items() if crew.fleet is not None else ():
        lines += [*_box(machine, [who]), ""]
    shared = any(edge.nbytes for role in crew.roles for edge in role.edges().values())
    arrows = [
        f"{' + '.join(givers)} ──► {arrow.label} ──► {' + '.join(takers)}" for arrow, givers, takers in _shared(crew)
    ]
    lines += arrows or ["nothing crosses between workers but the gradients" if shared else "nothing crosses"]
    return "\n".join(lines).rstrip() + "\n"


def _holds(role: Role) -> list[str]:
    """What one worker of the role does and holds, in its wiring's words."""
    rows, held, envs = list[str](), role.holds, role.envs
    if envs is not None:
        groups = f" in {envs.groups} groups" if envs.groups > 1 else ""
        groups = f" at a table of {envs.agents} players" if envs.agents > 1 else groups
        rows.append(f"envs    {envs.title} × {envs.lanes} lanes{groups}")
    if "agents" in role.edges():
        rows.append(f"agents  {role.edges()['agents'].label()}")
    if role.policy is not None:
        rows.append(f"policy  {role.policy.title}")
    if role.agents:
        rows.append(f"agents  {role.agents}, each by what it acted")
    if role.source is not None and role.learns_own:
        passes = role.spec.passes if role.spec is not None else None
        most = 0 if passes is None else passes.updates - 1
        lag = "free" if role.n > 1 and role.asynchronous else f"lag at most {most}" if most else "lag 0"
        rows.append(f"rollout {role.source.steps} steps, {lag}")
    if role.held_replay is not None:
        rows += role.held_replay.describe()
    if held.get("evict_every"):
        rows.append(f"trims   every {held['evict_every']:,} updates")
    if "references" in held:
        rows.append(f"games   {held['games'].title} against {', '.join(held['references'])}")
        rows.append(f"rates   every {held['every']:,} updates, by {held['matches']} matches")
    if held.get("explore") is not None:
        rows.append(held["explore"].label())
    if envs is not None and "out" in held:
        lag = "free" if held.get("lag", -1) < 0 else f"lag {held['lag']}"
        rows.append(f"rollout {held['out'].T} steps, {lag}")
    others = (held.get(name) for name in ("plan", "opponents", "evolution"))
    for thing in (role.source, held.get("server"), role.spec, *others):
        rows += [] if thing is None else thing.describe()
    return [*rows, f"if lost {role.if_lost}"]


def describe_wiring(crew: Crew) -> Row:
    """The same as plain data: the roles, and the arrows between them by the roles' names."""
    roles = [{"name": r.name, "n": r.n, "acts": r.acts, "learns": r.learner, "holds": _holds(r)} for r in crew.roles]
    arrows = [
        {"label": arrow.label, "from": givers, "to": takers, "weights": bool({"publish", "update"} & {*arrow.givers})}
        for arrow, givers, takers in _shared(crew)
    ]
    return {"roles": roles, "arrows": arrows}


def _shared(crew: Crew) -> list[tuple[Arrow, list[str], list[str]]]:
    """Every arrow, with the names of the roles that it comes from and goes to."""
    edges: dict[int, Edge] = {id(e): e for role in crew.roles for e in role.edges().values()}
    found = []
    for key, edge in edges.items():
        held = [(role.name, end) for role in crew.roles for end, e in role.edges().items() if id(e) == key]
        for arrow in edge.arrows():
            givers = dict.fromkeys(name for name, end in held if end in arrow.givers)
            takers = dict.fromkeys(name for name, end in held if end in arrow.takers)
            found.append((arrow, list(givers), list(takers)))
    return found


def _box(title: str, rows: list[str]) -> list[str]:
    width = max(len(title) + 3, *(len(r) for r in rows)) + 2
    top = f"┌─ {title} " + "─" * (width - len(title) - 3) + "┐"
    return [top, *(f"│ {r.ljust(width - 1)}│" for r in rows), "└" + "─" * width + "┘"]
