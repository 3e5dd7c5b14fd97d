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
    rows, held = list[str](), role.settings
    if role.envs is not None:
        groups = f" in {role.envs.groups} groups" if role.envs.groups > 1 else ""
        groups = f" at a table of {role.envs.agents} players" if role.envs.agents > 1 else groups
        rows.append(f"envs    {role.envs.title} × {role.envs.lanes} lanes{groups}")
    if role.agents is not None:
        rows.append(f"agents  {role.agents.label()}")
    policy = role.policy or (role.spec.policy if role.spec else None)
    if policy is not None:
        rows.append(f"policy  {policy.title}")
    if role.served:
        rows.append(f"agents  {len(role.served)}, each by what it acted")
    if role.learns_own:
        rows.append(f"rollout {role.source.steps} steps, {_lag(role)}")
    if role.held_replay is not None:
        rows += role.held_replay.describe()
    if held.get("trim"):
        rows.append(f"trims   every {held['trim']:,} updates")
    if "references" in held:
        rows.append(f"games   {held['games'].title} against {', '.join(held['references'])}")
        rows.append(f"rates   every {held['every']:,} updates, by {held['matches']} matches")
    if role.explore is not None:
        rows.append(role.explore.label())
    if role.envs is not None and role.out is not None:
        rows.append(f"rollout {role.out.T} steps, {'free' if role.lag is None else f'lag {role.lag}'}")
    others = (held.get(name) for name in ("plan", "opponents", "copies"))
    for thing in (role.spec and role.source, role.server, role.spec, *others):
        rows += [] if thing is None else thing.describe()
    return [*rows, f"if lost {role.on_loss}"]


def _lag(role: Role) -> str:
    """How old the weights of a rollout are that its own worker learns from."""
    most = role.source.passes.updates - 1 if role.source.passes else 0
    return "free" if role.n > 1 and role.asynchronous else f"lag at most {most}" if most else "lag 0"


def describe_wiring(crew: Crew) -> Row:
    """The same as plain data: the roles, and the arrows between them by the roles' names."""
    roles = [
        {"name": r.name, "n": r.n, "acts": bool(r.envs or r.agents), "learns": r.learner, "holds": _holds(r)}
        for r in crew.roles
    ]
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
