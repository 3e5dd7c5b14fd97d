"""A role of the wiring: the workers that do the same, what each holds, and which device computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from polyplay.buffers.replay import Replay
from polyplay.core.errors import UserError
from polyplay.core.machine import cores
from polyplay.core.worker import Edge, End, RoleSize, WorkerContext
from polyplay.envs.pool import Envs
from polyplay.workers.process import Work

if TYPE_CHECKING:
    from polyplay.acting.predictor import LaneTable
    from polyplay.acting.rows import Exploration
    from polyplay.learning.learner import LearnerSpec
    from polyplay.nets.policy import PolicyFactory
    from polyplay.workers.crew import WorkerHandle

OnLoss = Literal["fail", "replace"]
Kind = Literal["process", "thread"]
OPTIONS = {  # by role, what tells its number
    "act": "actors",
    "bundle": "learners",
    "episodic_replica": "workers",
    "learn": "learners",
    "replica": "replicas",
    "self_play": "players",
    "serve_parameters": "shards",
    "serve_replay": "replay_workers",
}
SERVING = {"act": "predictors", "learn": "trainers"}  # the same where they serve agents


@dataclass
class Role:
    """What every worker of a role holds, by name; `settings` are all other arguments of `work`."""

    name: str
    work: Work
    n: int
    on_loss: OnLoss
    learner: bool  # decides when the run is done, and saves
    on: Kind
    drain: bool  # workers that have to leave end by themselves
    size: RoleSize
    threads: int  # compute threads of each worker, 0: its share
    envs: Envs | None = None  # that its workers act in, where it learns from its own rollouts its source's
    agents: LaneTable | None = None  # lanes that several workers serve
    policy: PolicyFactory | None = None
    source: Any = None  # of a learner, a learning.Source; of who holds a replay, RolloutBatches
    out: Any = None  # an Edge that it writes into
    params: Any = None  # the weights that it publishes, if it learns, or reads
    spec: LearnerSpec | None = None
    lag: int | None = None
    explore: Exploration | None = None
    server: Any = None  # a parameter server that it serves
    league: Any = None  # that it plays in, makes past agents for, or rates
    best: Any = None  # the weights that it publishes, if it does not learn
    settings: dict[str, Any] = field(default_factory=dict)
    workers: dict[int, WorkerHandle] = field(default_factory=dict)  # by seat
    leaving: dict[int, WorkerHandle] = field(default_factory=dict)
    served: tuple[int, ...] = ()  # rows of the counters of agents that its workers learn for
    capacity: int = 0  # workers there is room for
    past: dict[int, WorkerContext] = field(default_factory=dict)  # who had each seat last
    lost: int = 0
    recent_losses: list[float] = field(default_factory=list)  # when workers were lost of late

    def join_source(self) -> None:
        """Hold what a learner's source holds. Raises UserError: it is no Source."""
        from polyplay.learning.loop import Source

        if not isinstance(self.source, Source):
            given = f"{self.name}: source {type(self.source).__name__} given"
            raise UserError(f"{given}, allowed: a polyplay.learning.Source, with shape and open(ctx, learner, params)")
        self.envs, self.league = self.source.envs, self.source.league

    @cached_property
    def parameters(self) -> int:
        """How many its network has; 0: it has none."""
        from polyplay.nets.factory import count_parameters

        policy = self.policy or (self.spec.policy if self.spec else None)
        return count_parameters(policy) if policy else 0

    FIELDS: ClassVar[tuple[str, ...]] = "envs", "agents", "policy", "source", "out", "params", "spec", "lag"
    FIELDS += "explore", "server", "best", "league"

    def arguments(self) -> dict[str, Any]:
        """What its workers are called with."""
        of_source = () if self.spec is None else ("envs", "league")
        held = {name: getattr(self, name) for name in self.FIELDS if name not in of_source}
        return {k: v for k, v in held.items() if v is not None} | self.settings

    def edges(self) -> dict[End, Edge]:
        """What it shares with other workers, by how it holds it."""
        held: dict[End, Edge | None] = {
            "out": self.out,
            "source": self.source and self.source.edge,
            "publish" if self.learner else "params": self.params,
            **({} if self.best is None else {"publish": self.best}),
            "update": None if self.spec is None else self.spec.update,
            "server": self.server,
            "posts" if self.learner else "plays" if self.envs else "rates": self.league,
        }
        return {end: edge for end, edge in held.items() if edge is not None}

    @property
    def option(self) -> str:
        """What tells the number of its workers on the command line."""
        known = OPTIONS | SERVING if self.drain else OPTIONS
        return f"--{known[self.name]}" if self.name in known else self.name

    @property
    def asynchronous(self) -> bool:
        """Whether its workers learn without waiting for each other (Hogwild, Chunked, ParameterServer)."""
        return self.spec is not None and self.spec.update.asynchronous

    @property
    def in_league(self) -> bool:
        """Whether it has to do with agents that play each other, or their past agents."""
        return bool(self.served) or self.league is not None

    @property
    def learns_own(self) -> bool:
        """Whether it learns from what it acts itself."""
        return self.spec is not None and self.source is not None and self.source.envs is not None

    @property
    def takes(self) -> bool:
        """Whether it takes what other workers make."""
        return self.source is not None and self.source.edge is not None

    @property
    def held_replay(self) -> Replay | None:
        """The replay that each of its workers holds."""
        own = self.drawn_replay if self.spec is not None and self.source.holds_replay else None
        return own or (None if self.out is None else self.out.replay)

    @property
    def drawn_replay(self) -> Replay | None:
        """The replay that it learns from, whoever holds it."""
        return self.source.replay if self.spec is not None and self.source is not None else None


@dataclass
class Placement:
    """device: auto, cpu or cuda; actors_on: cpu, or device: where learners compute."""

    device: str = "cpu"
    actors_on: str = "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """That learners compute on. Raises UserError: there are none of that kind."""
        if self.device == "cpu":
            return ("cpu",)
        from polyplay.nets.device import choose_devices

        return choose_devices(self.device)

    @property
    def on_cpu(self) -> bool:
        return self.devices == ("cpu",)

    @property
    def parts(self) -> int:
        """Into how many replicas a page divides itself where that is left open: cores, or devices."""
        return cores() if self.on_cpu else len(self.devices)

    def env_threads(self, actors: int) -> int:
        """Threads that step an actor's environments: one, where it computes on a core of its own; where a device does,
        all actors' are twice the cores, so that some step while others wait for it.
        """
        return 1 if self.actors_on == "cpu" or self.on_cpu else max(1, 2 * cores() // actors)

    def only_cpu(self, system: str) -> None:
        """The page has nothing for another device. Raises UserError if that was asked for."""
        if self.device == "cuda":
            raise UserError(f"--device: cuda given, but {system}'s workers compute on the CPU alone; use auto or cpu")
        self.device = "cpu"

    def device_for(self, role: Role, index: int) -> str:
        """Worker `index` of a role: processes take devices in turn, threads share the first."""
        if role.envs is not None and role.spec is None and self.actors_on == "cpu":
            return "cpu"
        return self.devices[index % len(self.devices) if role.on == "process" else 0]
