"""Roles (groups of workers that do the same work), the devices of workers, and diagrams of systems."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from polyplay.buffers.replay import Replay
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.machine import cores
from polyplay.core.worker import Arrow, Edge, Holder
from polyplay.envs.pool import Envs
from polyplay.workers.process import Work

if TYPE_CHECKING:
    from polyplay.learning import LearnerSpec, Source
    from polyplay.nets.policy import PolicyFactory
    from polyplay.workers.crew import Crew

T = TypeVar("T")
IfLost = Literal["fail", "replace"]
Kind = Literal["process", "thread"]
OPTIONS = {  # role → command-line option for the role's number of workers
    "act": "actors",
    "bundle": "learners",
    "actor_learner": "workers",
    "learn": "learners",
    "replica": "replicas",
    "self_play": "players",
    "serve_parameters": "shards",
    "serve_replay": "replay_workers",
}
SERVING = {"act": "predictors", "learn": "trainers"}  # the same for roles with `drain`


@dataclass(frozen=True, eq=False)
class Role:
    """A group of workers that each run `work(ctx, **holds)`. `n`: number of workers when the run starts."""

    name: str
    work: Work
    n: int
    holds: Mapping[str, Any]  # exactly the keyword arguments of `work`
    if_lost: IfLost = "fail"
    on: Kind = "process"
    learner: bool = False  # whether its workers save checkpoints and decide when the run is done
    drain: bool = False  # whether dismissed workers finish their work before they end

    @cached_property
    def _parts(self) -> list[tuple[str, Any]]:
        """The role's arguments as pairs (name, value), and after these the values inside each Holder argument."""
        made = [part for value in self.holds.values() if isinstance(value, Holder) for part in value.holds().items()]
        return [*self.holds.items(), *made]

    def holding(self, **more: Any) -> Role:
        """Return a copy of the role with changed arguments."""
        return replace(self, holds={**self.holds, **more})

    def find(self, kind: type[T]) -> T | None:
        """Return the role's first argument of class `kind`, or None. Values inside Holder arguments count, too."""
        return next((value for _, value in self._parts if isinstance(value, kind)), None)

    def edges(self) -> dict[str, Edge]:
        """Return the edges (objects shared with other workers), by the name of the argument or Holder entry."""
        return {end: value for end, value in self._parts if isinstance(value, Edge)}

    @property
    def source(self) -> Source | None:
        """The source of the data that the role learns from, or None if the role does not learn."""
        from polyplay.learning import Source

        return self.find(Source)  # type: ignore[type-abstract]

    @property
    def spec(self) -> LearnerSpec | None:
        """The LearnerSpec of the role's learning, or None if the role does not learn."""
        from polyplay.learning import LearnerSpec

        return self.find(LearnerSpec)

    @property
    def policy(self) -> PolicyFactory | None:
        """The factory of the network that the role acts with or trains, or None if the role has no network."""
        from polyplay.nets.policy import PolicyFactory

        return self.find(PolicyFactory)

    @cached_property
    def parameters(self) -> int:
        """The number of parameters of the role's network, or 0 if the role has no network."""
        from polyplay.nets.factory import count_parameters

        return count_parameters(self.policy) if self.policy else 0

    @property
    def option(self) -> str:
        """The command-line option for the number of workers, or the role's name if no such option exists."""
        known = OPTIONS | SERVING if self.drain else OPTIONS
        return f"--{known[self.name]}" if self.name in known else self.name

    @property
    def envs(self) -> Envs | None:
        """The environments that the role acts in, or None. Environments that are only for evaluation do not count."""
        return dict(self._parts).get("envs")

    @property
    def acts(self) -> bool:
        """Whether the role acts, in environments of the role or in the lanes of a LaneTable (argument `agents`)."""
        return self.envs is not None or "agents" in self.edges()

    @property
    def learns_own(self) -> bool:
        """Whether each worker of the role both acts and learns."""
        return self.envs is not None and self.source is not None

    @property
    def asynchronous(self) -> bool:
        """Whether the role's learners update without waiting for each other (Hogwild, Chunked, ParameterServer)."""
        return self.spec is not None and self.spec.update.asynchronous

    @property
    def agents(self) -> int:
        """The number of agents that the role trains separately, or 0 if it trains at most one."""
        return self.source.agents if self.source else 0

    @property
    def replay(self) -> Replay | None:
        """The replay buffer that the role learns from, or that its workers hold for other roles, or None."""
        out = self.holds.get("out")
        return self.find(Replay) or (out.replay if isinstance(out, Edge) else None)

    @property
    def held_replay(self) -> Replay | None:
        """The replay buffer that each worker of the role holds in its memory, or None."""
        return self.replay if self.source is None or self.source.holds_replay else None


def check_holds(name: str, work: Work, holds: Mapping[str, Any]) -> None:
    """Check a role's arguments. Raises UserError if one is unknown to `work`, missing, or of a wrong class."""
    signature = inspect.signature(work)
    try:
        signature.bind(None, **holds)
    except TypeError as e:
        raise UserError(f"{name}: {e}; allowed: {', '.join([*signature.parameters][1:]) or 'none'}") from None
    if not {"policy", "source", "spec"}.isdisjoint(holds):
        _check_classes(name, holds)


def _check_classes(name: str, holds: Mapping[str, Any]) -> None:
    from polyplay.learning import LearnerSpec, Source
    from polyplay.nets.policy import PolicyFactory

    source = "a polyplay.learning.Source, with shape and open(ctx, learner, params)"
    for argument, kinds, wanted in (
        ("policy", PolicyFactory, "a PolicyFactory of polyplay.nets.policy, such as NetworkFactory"),
        ("source", Source if "spec" in holds else (Source, Edge), source),
        ("spec", LearnerSpec, "a polyplay.learning.LearnerSpec"),
    ):
        if argument in holds and not isinstance(holds[argument], kinds):
            raise UserError(f"{name}: {argument} is of type {type(holds[argument]).__name__}; must be {wanted}")


@dataclass
class Placement:
    """The devices of workers. `device`: auto, cpu or cuda. `actors_on`: cpu, or device (the learners' devices)."""

    device: str = "cpu"
    actors_on: str = "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that learners compute on. Raises UserError if this machine lacks the device."""
        if self.device == "cpu":
            return ("cpu",)
        from polyplay.nets.device import choose_devices

        return choose_devices(self.device)

    @property
    def on_cpu(self) -> bool:
        return self.devices == ("cpu",)

    @property
    def parts(self) -> int:
        """The default number of replicas (workers that act and learn): one per core, or one per GPU."""
        return cores() if self.on_cpu else len(self.devices)

    def env_threads(self, actors: int) -> int:
        """Return the number of threads that step an actor's environments. An actor on a CPU has one thread. All actors
        on GPUs together have two threads per core, so that some step environments while others wait for the GPU.
        """
        return 1 if self.actors_on == "cpu" or self.on_cpu else max(1, 2 * cores() // actors)

    def only_cpu(self, system: str) -> None:
        """Place all workers on the CPU, for a system without GPU support. Raises UserError with `--device cuda`."""
        if self.device == "cuda":
            raise UserError(f"--device cuda: {system}'s workers compute on the CPU only; use auto or cpu")
        self.device = "cpu"

    def device_for(self, role: Role, index: int) -> str:
        """Return the device of worker `index` of a role: processes use the devices in rotation, threads the first."""
        if role.envs is not None and role.source is None and self.actors_on == "cpu":
            return "cpu"
        return self.devices[index % len(self.devices) if role.on == "process" else 0]


# Diagram of a system: its roles, what each role holds, and the data that flows between roles.


def draw_diagram(crew: Crew) -> str:
    """Draw a system as text: a box per role, a box per machine if there are several, and a line per flow of data."""
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
    """Return lines of text about one worker of a role: environments, network, replay and rollouts."""
    rows, held, envs = list[str](), role.holds, role.envs
    if envs is not None:
        groups = f" in {envs.groups} groups" if envs.groups > 1 else ""
        groups = f" at a table of {envs.agents} players" if envs.agents > 1 else groups
        rows.append(f"envs    {_played(envs)} × {envs.lanes} lanes{groups}")
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
    """Return the roles and the flows of data between them (arrows), as plain data."""
    roles = [{"name": r.name, "n": r.n, "acts": r.acts, "learns": r.learner, "holds": _holds(r)} for r in crew.roles]
    arrows = [
        {"label": arrow.label, "from": givers, "to": takers, "weights": bool({"publish", "update"} & {*arrow.givers})}
        for arrow, givers, takers in _shared(crew)
    ]
    return {"roles": roles, "arrows": arrows}


def _shared(crew: Crew) -> list[tuple[Arrow, list[str], list[str]]]:
    """Return each flow of data, with the names of the roles that send it and of those that receive it."""
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


FEW = 6  # most tasks that a diagram names


def _played(envs: Envs) -> str:
    """Return the environment's title. For several tasks, return their names, or their number if they are many."""
    tasks = envs.spec.tasks
    return envs.title if not tasks else ", ".join(tasks) if len(tasks) <= FEW else f"{len(tasks)} tasks {envs.title}"
