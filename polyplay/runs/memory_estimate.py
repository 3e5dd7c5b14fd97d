"""How much memory a run needs at least: the bytes of its replays, queues, weights and lanes by its wiring, what its
processes take before they do anything, and how much there is. Nothing is computed for it. Imports no torch.

What is not counted: what networks keep while they compute, and what environments take by themselves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from polyplay.buffers.rollout_slots import rows_of
from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.machine import cores
from polyplay.envs.make import native
from polyplay.envs.pools.board import SharedRows

if TYPE_CHECKING:
    from polyplay.envs.pool import EnvSpec
    from polyplay.workers.crew import Crew
    from polyplay.workers.role import Role

MB = 2**20
# Proportional set sizes in MB of processes that do nothing yet, measured with torch 2.13's CPU build on Linux x86-64
IDLE_PROCESS_MB = {
    "server": 95,  # the fork server of the workers, torch in it
    "tracker": 7,
    "act": 52,  # a worker beyond what it shares with its server
    "learn": 137,  # one that computes gradients
    "thread": 85,  # what learning imports, where workers are threads of the main process
    "env server": 38,
    "env": 7,  # an environment process beyond its server, without the environment
    "ale": 8,
    "ale lane": 0.7,
}
Parts = Mapping[str, float]  # bytes by what they are for
SHRINKS = {  # of each part: what may be halved to make it smaller, in the order in which that is tried
    "replay": ("capacity", "learners batch capacity"),
    "recent rows": ("batch", "lanes batch", "unroll", "agents"),
    "rollouts": ("lanes", "batch", "lanes batch", "unroll", "slots", "actors", "actors batch", "learners"),
    "lanes": ("lanes", "lanes batch", "actors", "replicas"),
    "trees": ("games", "players"),
    "weights": ("learners", "replicas", "learners batch", "learners batch capacity", "actors", "actors batch"),
    "processes": ("actors", "replicas", "learners", "workers", "agents", "actors batch", "learners batch"),
}
ROUNDS = 12  # parts that are made smaller, one after the other


def size_text(n: float) -> str:
    """Bytes for people: 12.3 MB, 1.24 GB."""
    mb = n / MB
    return f"{mb / 1024:.3g} GB" if mb >= 1000 else f"{mb:.3g} MB"


# ------------------------------------------------------------------------------------------------- what there is


def memory_limit() -> int:
    """Bytes this process and its children may have: the machine's, or its control group's if that is less."""
    found = [psutil.virtual_memory().total]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            found += _of_group(*line.split(":", 2)[1:])
    return min(found)


def _of_group(controllers: str, path: str, root: str = "/sys/fs/cgroup") -> list[int]:
    """Limits of one control group and those around it: version 2 (no controllers named) or 1."""
    if controllers not in ("", "memory"):
        return []
    base, name = (f"{root}/memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
    limits = []
    place = Path(path.lstrip("/"))
    for at in (place, *place.parents):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            limits.append(int((Path(base) / at / name).read_text("utf-8")))
    return limits


# ------------------------------------------------------------------------------------------------ what is needed


def predict_memory(crew: Crew, spec: EnvSpec, net: Any) -> dict[str, float]:
    """Bytes by what they are for, all processes together: processes, rollouts, replay, weights, lanes, …

    spec: the environments'; net: one network, as every worker makes its own.
    """
    weights = bytes_of(net)
    parts = dict.fromkeys(("processes", "rollouts", "replay", "recent rows", "weights", "lanes", "trees"), 0.0)
    parts["processes"] = processes(crew)
    for role in crew.roles:
        if role.spec is not None:
            own = role.spec.update.worker_nbytes(net) + weights * bool(role.spec.target)
            own *= _agents(role)
            parts["recent rows"] += role.n * _agents(role) * _recent_rows(net, spec, role)
        else:  # a network as one vector, and its gradient, which who serves agents never touches
            own = weights * (0.0 if role.policy is None else 1.0 if role.agents else 2.0)
        parts["weights"] += role.n * own
        if role.held_replay is not None:
            parts["replay"] += role.n * role.held_replay.bytes(batches=role.out is None)
        envs, pools = (role.agents.envs, 1) if role.agents is not None else (role.envs, role.n)
        parts["lanes"] += 0.0 if envs is None else pools * _lanes(envs)
        parts["trees"] += role.n * _trees(role)
        parts["rollouts"] += role.n * _rollouts(role, net)
    for edge in {id(e): e for role in crew.roles for e in role.edges().values()}.values():
        parts[edge.memory] = parts.get(edge.memory, 0.0) + edge.nbytes
    return parts


def nearest_fit(parts: Parts, limit: int, settings: Any, again: Callable[[Any], Parts]) -> dict[str, int]:
    """The settings to change and their values, so that all fits; {}: none were found. The largest part is made smaller,
    as little as will do, until no part is too large. again: the parts of other settings, or UserError.
    """
    changed = dict[str, int]()
    for _ in range(ROUNDS):
        order = sorted(parts, key=lambda k: (k == "processes" and parts[k] < limit, -parts[k]))
        found = (_made_smaller(part, parts, limit, settings, changed, again) for part in order)
        best = next((one for one in found if one is not None), None)
        if best is None:
            return {}
        changed, parts = best
        if sum(parts.values()) <= limit:
            return changed
    return {}


def _made_smaller(
    part: str, parts: Parts, limit: int, settings: Any, changed: dict[str, int], again: Callable[[Any], Parts]
) -> tuple[dict[str, int], Parts] | None:
    """Settings by which a part fits beside the others, or into half of the limit, and the parts then; or settings that
    make it smallest. None: nothing makes it smaller.
    """
    room = max(limit - sum(parts.values()) + parts[part], limit / 2)
    halvings = max(1, math.ceil(math.log2(max(parts[part] / room, 1.0))))
    best, values = None, vars(settings) | changed
    for names in map(str.split, SHRINKS.get(part, ())):
        numbers = [values.get(name) for name in names]
        if not all(type(n) is int and n > 1 for n in numbers):
            continue
        by = min(halvings, *(int(n).bit_length() - 1 for n in numbers))
        other = changed | {name: values[name] >> by for name in names}
        with contextlib.suppress(UserError):
            smaller = again(replace(settings, **other))
            if smaller[part] <= room and smaller[part] < parts[part]:
                return other, smaller
            if smaller[part] < min(parts[part], parts[part] if best is None else best[1][part]):
                best = other, smaller
    return best


def processes(crew: Any) -> float:
    """Bytes of all processes before they do anything, this one as it is now."""
    here = psutil.Process().memory_full_info()
    total = getattr(here, "pss", here.rss) / MB
    if any(_own(crew, r) for r in crew.roles):
        total += IDLE_PROCESS_MB["server"] + IDLE_PROCESS_MB["tracker"]
    for role in crew.roles:
        own = _own(crew, role)
        kind = "learn" if role.spec else "act"
        total += role.n * IDLE_PROCESS_MB[kind] if own else IDLE_PROCESS_MB["thread"] * (kind == "learn")
        envs, pools = (role.agents.envs, 1) if role.agents else (role.envs, role.n)
        if envs is not None and kind_of(envs) == "processes":
            stepping = envs.active if role.agents and envs.active else workers_of(envs)
            total += IDLE_PROCESS_MB["env server"] * (pools if own else 1) + pools * IDLE_PROCESS_MB["env"] * stepping
    return total * MB


def _own(crew: Any, role: Any) -> bool:
    """Whether a role's workers are processes."""
    return not crew.serial and role.on == "process"


def bytes_of(net: Any) -> int:
    """Of its parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in (*net.parameters(), *net.buffers()))


GAMES = ("toy", "game", "arena")  # our own, which step in the thread of their worker and save everything


def kind_of(envs: Any) -> str:
    """Which pool serves them: ale, toy, game, arena, envpool, vector, inline or processes."""
    if envs.title.startswith("ALE/") and native(envs):
        return "ale"
    for name in (*GAMES, "envpool"):
        if envs.title.startswith(f"{name}:"):
            return name
    if envs.spec.vector:
        return "vector"
    return "inline" if envs.inline else "processes"


def workers_of(envs: Any) -> int:
    """Environment processes, or ale-py's threads, of one pool; as the pool counts them."""
    return min(envs.workers or cores(), envs.lanes // envs.groups)


def _lanes(envs: Any) -> float:
    """Bytes of one pool: its rows, and the emulators. What other environments take by themselves nobody tells."""
    kind = kind_of(envs)
    if kind == "ale":
        return IDLE_PROCESS_MB["ale"] * MB + envs.lanes * (
            IDLE_PROCESS_MB["ale lane"] * MB + 2 * tree.nbytes(envs.spec.obs)
        )
    if kind in (*GAMES, "vector", "envpool"):
        return envs.lanes * float(tree.nbytes(envs.spec.obs))
    return float(SharedRows(envs.spec, envs.lanes, workers_of(envs)).nbytes)


def _batch(role: Role) -> tuple[float, float]:
    """Rows, the last of each rollout included, and lanes that one learner computes at once."""
    if role.drawn_replay is not None:
        return role.drawn_replay.drawn_rows / role.drawn_replay.batch, role.drawn_replay.batch
    parts = role.spec.passes.minibatches if role.spec and role.spec.passes else 1
    T, B = role.source.shape if role.source else (role.T, role.envs.lanes if role.envs else 0)
    return T + 1, B / parts


def _agents(role: Role) -> float:
    """That one worker learns for."""
    return max(1.0, len(role.served) / role.n)


def _trees(role: Role) -> float:
    """Bytes of one worker's searches."""
    if role.envs is None or "board" not in role.settings:
        return 0.0
    searches = 2 if role.best is not None else 1  # a judge's candidate and champion
    return searches * role.envs.lanes * float(role.settings["options"].nbytes(role.settings["board"]))


def _recent_rows(net: Any, spec: Any, role: Role) -> float:
    """Bytes of what an agent's learner keeps for auxiliary tasks, see learning.recent_rows."""
    from polyplay.learning.recent_rows import COLUMNS, EXAMPLES

    heads = getattr(net, "auxiliary", None)
    if heads is None or (heads.reward is None and not heads.value):
        return 0.0
    length, lanes = _batch(role)
    columns = max(2000, 2 * length * lanes) // length
    rows = {k: v for k, v in rows_of(spec, net.spec()).items() if k in (COLUMNS if heads.value else EXAMPLES)}
    return columns * (length * (tree.nbytes(rows) + 1) + heads.value * tree.nbytes(net.state_spec()))


def _rollouts(role: Role, net: Any) -> float:
    """Bytes of one worker's own slots, and of the batches that it puts together from several."""
    if role.T and role.envs is not None:
        rows = rows_of(role.envs.spec, net.spec())
        slots = role.envs.groups
        slot = (role.T + 1) * role.envs.lanes // slots * tree.nbytes(rows)
        return float(slots * slot * (2 if slots > 1 else 1))
    return _agents(role) * getattr(role.source, "joined_nbytes", 0.0) if role.spec else 0.0
