"""How much memory a run will need, predicted from its wiring and specs, and how much there is.

Shared blocks are counted exactly; what a process of Python and torch takes by itself was measured (`OF`), and so
was how much more than the tensors kept for it a backward pass takes (`BACKWARD`). Imports no torch.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from polyplay.buffers.replay import replay_of
from polyplay.buffers.rollout_queue import ROWS, RolloutQueue, row_spec
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.buffers.training_queue import TrainingQueue
from polyplay.common import tree
from polyplay.common.machine import cores
from polyplay.common.shared_memory import SharedBlock
from polyplay.envs.make import native
from polyplay.envs.pools.board import SharedRows
from polyplay.workers.crew import apart

MB = 2**20
# Proportional set sizes in MB of processes that do nothing yet, measured with torch 2.13's CPU build on Linux x86-64
IDLE_PROCESS_MB = {
    "server": 165,  # the fork server of the workers, torch in it
    "tracker": 7,
    "act": 52,  # a worker beyond what it shares with its server
    "learn": 137,  # one that computes gradients
    "thread": 85,  # what learning imports, where workers are threads of the main process
    "env server": 38,
    "env": 7,  # an environment process beyond its server, without the environment
    "ale": 8,
    "ale lane": 0.7,
}
BACKWARD = 1.5  # of the tensors kept for the backward pass: gradients of some of them stand beside them


def size_text(n: float) -> str:
    """Bytes for people: 12.3 MB, 1.24 GB."""
    mb = n / MB
    return f"{mb / 1024:.3g} GB" if mb >= 1000 else f"{mb:.3g} MB"


# ------------------------------------------------------------------------------------------------- what there is


def memory_limit() -> int:
    """Bytes this process and its children may have: the machine's, or its control group's if that is less."""
    found = [psutil.virtual_memory().total]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
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
            limits.append(int((Path(base) / at / name).read_text()))
    return limits


# ------------------------------------------------------------------------------------------------ what is needed


def predict_memory(crew: Any, spec: Any, net: Any) -> dict[str, float]:
    """Bytes by what they are for, all processes together: processes, learning, rollouts, weights, lanes.

    spec: the environments'; net: one network, as every worker makes its own.
    """
    from polyplay.weights.allreduce import AllReduce
    from polyplay.weights.flat import param_sizes  # torch

    weights, kept = bytes_of(net), _kept(net, spec)
    inner = _inner(crew, net)
    parts = dict.fromkeys(("processes", "learning", "rollouts", "replay", "weights", "lanes"), 0.0)
    parts["processes"] = processes(crew)
    for role in crew.roles:
        spec, envs = role.kw.get("spec"), role.kw.get("envs")
        has = bool({"policy", "spec"} & role.kw.keys())  # a network: shards and memories have none
        held = 2.0 * weights * has  # as one vector, and its gradient
        if spec is not None:
            if apart(role):  # then statistics, and weights if not each has a copy, are in a shared block
                held -= weights * (not spec.update.copy)
            elif isinstance(spec.update, AllReduce):  # then they are too, gradients, and weights without buffers
                held -= weights * (1.0 + (param_sizes(net)[0] == param_sizes(net)[1]) - 1.0 / role.n)
            else:
                held += optimizer(spec.update.optim, weights)
            held += weights if spec.target else 0.0
            parts["learning"] += role.n * BACKWARD * kept * _batch(role.kw) * crew.where.on_cpu
        replay = replay_of(role.kw)
        if replay is not None and not isinstance(role.kw.get("source"), SampleQueue):
            parts["replay"] += role.n * replay.bytes(batches=not isinstance(role.kw.get("out"), SampleQueue))
        desk = role.kw.get("desk")
        if desk is not None:
            parts["learning"] += role.n * kept * desk.envs.batching.n
            parts["lanes"] += _lanes(desk.envs)
            held = weights  # its module lies in what the trainers share; the gradient is never touched
        if envs is not None:
            parts["learning"] += role.n * kept * envs.lanes
            parts["lanes"] += role.n * _lanes(envs)
        parts["weights"] += role.n * held
    streams = _streams(crew)
    parts["rollouts"] = float(sum(s.block.nbytes for s in (*streams, *inner)) + _joined(crew, inner))
    samples = sum(t.block.nbytes for t in _things(crew) if isinstance(t, SampleQueue))
    parts["replay"] += samples
    parts["weights"] += sum(b.nbytes for b in _blocks(crew)) - sum(s.block.nbytes for s in streams) - samples
    return parts


def processes(crew: Any) -> float:
    """Bytes of all processes before they do anything, this one as it is now."""
    here = psutil.Process().memory_full_info()
    total = getattr(here, "pss", here.rss) / MB
    if any(_own(crew, r) for r in crew.roles):
        total += IDLE_PROCESS_MB["server"] + IDLE_PROCESS_MB["tracker"]
    for role in crew.roles:
        kind, apart = "learn" if "spec" in role.kw else "act", _own(crew, role)
        total += role.n * IDLE_PROCESS_MB[kind] if apart else IDLE_PROCESS_MB["thread"] * (kind == "learn")
        desk = role.kw.get("desk")
        if desk is not None and kind_of(desk.envs) == "processes":
            total += IDLE_PROCESS_MB["env server"] + IDLE_PROCESS_MB["env"] * (
                desk.envs.active or workers_of(desk.envs)
            )
        envs = role.kw.get("envs")
        if envs is not None and kind_of(envs) == "processes":
            total += IDLE_PROCESS_MB["env server"] * (role.n if apart else 1) + role.n * IDLE_PROCESS_MB[
                "env"
            ] * workers_of(envs)
    return total * MB


def _own(crew: Any, role: Any) -> bool:
    """Whether a role's workers are processes."""
    return not crew.serial and role.on == "process"


def bytes_of(net: Any) -> int:
    """Of its parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in (*net.parameters(), *net.buffers()))


def optimizer(optim: Any, weights: float) -> float:
    """Bytes of an optimiser's state for that many bytes of weights."""
    return weights * len(optim.statistics)


def kind_of(envs: Any) -> str:
    """Which pool serves them: ale, toy, envpool, vector, inline or processes."""
    if envs.title.startswith("ALE/") and native(envs):
        return "ale"
    for name in ("toy", "envpool"):
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
    if kind in ("toy", "vector", "envpool"):
        return envs.lanes * float(tree.nbytes(envs.spec.obs))
    return float(SharedRows(envs.spec, envs.lanes, workers_of(envs))._block.nbytes)


def _kept(net: Any, spec: Any) -> float:
    """Bytes per row that the network keeps for the backward pass, measured on a few rows of zeros."""
    import torch

    rows, lanes = 2, 8
    own = {x.untyped_storage().data_ptr() for x in (*net.parameters(), *net.buffers())}
    batch = tree.zeros({"obs": spec.obs, **ROWS, **net.spec()}, (rows, lanes))
    if getattr(spec, "mask", None) is not None:
        batch["mask"] = tree.map(np.ones_like, tree.zeros(spec.mask, (rows, lanes)))
    kept: dict[int, int] = {}

    def pack(x: Any) -> Any:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = net.unroll(tree.map(torch.from_numpy, batch), net.initial(lanes))  # held: so no address comes twice
    return sum(kept.values()) / (rows * lanes) if out else 0.0


def _batch(kw: Any) -> int:
    """Rows that one learner computes at once, the last of each rollout included."""
    replay = replay_of(kw)
    if replay is not None:
        return replay.batch * (replay.burn_in + replay.sequence + replay.n_step if replay.sequence else 2)
    passes = getattr(kw.get("spec"), "passes", None)
    parts = passes.minibatches if passes else 1
    if "source" in kw:
        source = kw["source"]
        return -(-source.n * source.queue.lanes * (source.queue.T + 1) // parts)
    return -(-kw["envs"].lanes * (kw["T"] + 1) // parts)


def _inner(crew: Any, net: Any) -> list[Any]:
    """The streams within replicas, one per worker, made here as they will be there: untouched they take no memory."""
    found = []
    for role in crew.roles:
        envs, T = role.kw.get("envs"), role.kw.get("T")
        if envs is not None and T is not None:
            mask = getattr(envs.spec, "mask", None)
            rows = row_spec(envs.spec.obs, net.spec(), *([] if mask is None else [mask]))
            queue = RolloutQueue(rows, net.state_spec(), T, envs.lanes // envs.groups, slots=2 * envs.groups)
            found += [queue] * role.n
    return found


def _joined(crew: Any, inner: list[Any]) -> float:
    """Bytes of the batches that learners put together from several slots."""
    taken = [(r.n, r.kw["source"]) for r in crew.roles if hasattr(r.kw.get("source"), "stream")]
    sources = [(n, source.queue, source.n) for n, source in taken]
    sources += [(1, s, s.slots // 2) for s in inner]
    return sum(n * slots * s.block.nbytes / s.slots for n, s, slots in sources if slots > 1)


def _things(crew: Any) -> list[Any]:
    """Every object that workers share, once."""
    found: dict[int, Any] = {}
    for role in crew.roles:
        spec = role.kw.get("spec")
        for thing in (*role.kw.values(), getattr(spec, "update", None), getattr(spec, "hyperparameters", None)):
            inner = getattr(thing, "stream", thing)
            found[id(inner)] = inner
    return list(found.values())


def _streams(crew: Any) -> list[Any]:
    return [t for t in _things(crew) if isinstance(t, RolloutQueue | TrainingQueue)]


def _blocks(crew: Any) -> list[SharedBlock]:
    blocks = [getattr(t, name, None) for t in _things(crew) for name in ("block", "_block")]
    return [b for b in blocks if isinstance(b, SharedBlock)]
