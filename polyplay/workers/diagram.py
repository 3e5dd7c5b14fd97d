"""Draws a system from its wiring: which roles there are, what each holds, and so what flows from whom to whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyplay.acting.exploration import GaussianNoise
from polyplay.buffers.replay import Uniform, replay_of
from polyplay.buffers.rollout_queue import RolloutBatches, RolloutQueue
from polyplay.buffers.sample_queue import SampleQueue
from polyplay.buffers.training_queue import TrainingBatches, TrainingQueue
from polyplay.learning.sources import ReplayOfRollouts
from polyplay.weights.allreduce import AllReduce
from polyplay.weights.chunked import Chunked
from polyplay.weights.hogwild import Hogwild
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import Params
from polyplay.weights.update import Local


def draw_diagram(crew: Any) -> str:
    """One box per role, then one line per thing that two roles share."""
    lines: list[str] = []
    for role in crew.roles:
        lines += [*_box(f"{role.name} × {role.n}", _holds(role)), ""]
    for shared, label in _shared(crew).items():
        givers, takers = shared[1], shared[2]
        lines.append(f"{' + '.join(givers)} ──► {label} ──► {' + '.join(takers)}")
    if not _shared(crew):
        lines.append("nothing crosses between workers but the gradients" if _reduces(crew) else "nothing crosses")
    return "\n".join(lines).rstrip() + "\n"


def _holds(role: Any) -> list[str]:
    """What one worker of the role does and holds, in its wiring's words."""
    kw, rows = role.kw, []
    if "envs" in kw:
        envs = kw["envs"]
        groups = f" in {envs.groups} groups" if envs.groups > 1 else ""
        rows.append(f"envs    {envs.title} × {envs.lanes} lanes{groups}")
    if "desk" in kw:
        envs = kw["desk"].envs
        rows.append(f"agents  {envs.title} × {envs.active or envs.lanes}, at most {envs.batching.n} served at once")
    net = kw.get("policy") or getattr(kw.get("spec"), "policy", None)
    if net is not None:
        rows.append(f"policy  {_net(net)}")
    if "T" in kw:
        passes = getattr(kw.get("spec"), "passes", None)
        most = 0 if passes is None else passes.epochs * passes.minibatches - 1
        free = role.n > 1 and kw["spec"].update.apart
        rows.append(f"rollout {kw['T']} steps, {'free' if free else f'lag at most {most}' if most else 'lag 0'}")
    replay, drawn = replay_of(kw), isinstance(kw.get("source"), SampleQueue)
    if replay is not None and not drawn:
        rows += _remembers(replay)
    if kw.get("trim"):
        rows.append(f"trims   every {kw['trim']:,} updates")
    if "explore" in kw:
        rows.append(_explores(kw["explore"]))
    if isinstance(kw.get("out"), RolloutQueue):
        lag = kw.get("lag")
        rows.append(f"rollout {kw['out'].T} steps, {'free' if lag is None else f'lag {lag}'}")
    if "source" in kw:
        source = kw["source"]
        if isinstance(source, TrainingBatches):
            rows.append(f"batch   at least {source.rows} transitions" if source.rows else "batch   one chunk")
    if drawn:
        rows.append(f"batch   {_items(replay)}, {kw['source'].depth} ready from each")
    if isinstance(kw.get("source"), RolloutBatches) and "spec" in kw:
        source = kw["source"]
        rows.append(f"batch   {source.n} slots × {source.queue.lanes} lanes × {source.queue.T} steps")
    if "server" in kw:
        rows += _shard(kw["server"])
    if "spec" in kw:
        spec = kw["spec"]
        rows += [f"loss    {type(spec.loss).__name__}", f"update  {_update(spec.update)}"]
        if getattr(spec.update, "outliers", None) is not None:
            rows.append(f"drops   losses beyond mean + {spec.update.outliers.k:g} deviations")
        if spec.passes is not None:
            rows.append(f"passes  {spec.passes.epochs} of {spec.passes.minibatches} minibatches")
    rows.append(f"if lost {role.on_loss}")
    return rows


def _shard(server: ParameterServer) -> list[str]:
    """What one worker of a parameter server has."""
    each = max(p.stop - p.start for p in server.parts)
    rows = [f"part    {each:,} weights, {server.optim.name}'s {', '.join(server.optim.statistics)}"]
    return rows + [f"drops   gradients more than {server.stale} of its updates old"] * bool(server.stale)


def _remembers(replay: Any) -> list[str]:
    """What a replay keeps, and what is drawn from it."""
    pace = "free" if replay.ratio is None else f"{replay.ratio:g} per agent step"
    drawn = f"{pace}, {type(replay.sampler).__name__.lower()}"
    soft = ", soft" if replay.soft else ""
    return [f"replay  {replay.capacity:,} agent steps{soft}", f"draws   {_items(replay)}: {drawn}"]


def _items(replay: Any) -> str:
    what = f"sequences of {replay.sequence} after {replay.burn_in}" if replay.sequence else "transitions"
    steps = f" of {replay.n_step} steps" if replay.n_step > 1 else ""
    return f"{replay.batch} {what}{steps}"


def _explores(explore: Any) -> str:
    """The deviation of noise, or the smallest ε of a schedule or a ladder."""
    if isinstance(explore, GaussianNoise):
        return f"noise   normal, deviation {explore.deviation:g}"
    if explore is None:
        return "ε       0"
    explore = getattr(explore, "schedule", explore)  # a joint one's
    least = float(explore.at(np.array([2**62]), np.array([explore.lanes - 1])).min())
    return f"ε       {type(explore).__name__} to {least:.3g}"


def _net(factory: Any) -> str:
    """The network's name, and its core if it has one."""
    core = getattr(factory, "options", {}).get("core", "none")
    name = getattr(factory, "name", factory)
    title = name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))
    return title if core == "none" else f"{title} + {core}"


def _update(update: Any) -> str:
    if isinstance(update, AllReduce):
        return f"AllReduce({update.optim.name}) of {update.replicas}"
    if isinstance(update, Hogwild):
        return f"Hogwild({update.optim.name}), no lock"
    if isinstance(update, Chunked):
        return f"Chunked({update.optim.name}), {update.chunks} parts"
    if isinstance(update, ParameterServer):
        return f"Server({update.optim.name}), {update.shards} shards"
    return f"Local({update.optim.name})" if isinstance(update, Local) else type(update).__name__


def _reduces(crew: Any) -> bool:
    return any(isinstance(getattr(r.kw.get("spec"), "update", None), AllReduce) for r in crew.roles)


def _shared(crew: Any) -> dict[tuple, str]:
    """(identity, givers, takers) → label of every stream and parameter vector."""
    found: dict[int, tuple[Any, list[str], list[str]]] = {}
    served: dict[tuple, str] = {}
    for role in crew.roles:
        for thing in (*role.kw.values(), getattr(role.kw.get("spec"), "update", None)):
            source = isinstance(thing, RolloutBatches | TrainingBatches | ReplayOfRollouts)
            inner = thing.queue if source else thing
            if isinstance(inner, RolloutQueue | TrainingQueue | SampleQueue):
                entry = found.setdefault(id(inner), (inner, [], []))
                entry[2 if source or thing is role.kw.get("source") else 1].append(role.name)
            elif isinstance(inner, Params):
                entry = found.setdefault(id(inner), (inner, [], []))
                entry[1 if role.learner else 2].append(role.name)
            elif isinstance(inner, ParameterServer) and "server" not in role.kw:
                served |= _served(crew, role, inner)
            elif isinstance(inner, Hogwild | Chunked):
                entry = found.setdefault(id(inner), (inner, [], []))
                entry[1].extend([role.name] * role.learner)
                entry[2].append(role.name)
    crossing = {(k, tuple(givers), tuple(takers)): _label(thing) for k, (thing, givers, takers) in found.items()}
    return crossing | served


def _served(crew: Any, role: Any, server: ParameterServer) -> dict[tuple, str]:
    """What goes between a role and the shards of a parameter server."""
    shards = tuple(r.name for r in crew.roles if r.kw.get("server") is server)
    own, spec = (role.name,), role.kw.get("spec")
    down = {("weights", shards, own): f"{server.weights:,} weights, in {server.shards} parts of a version each"}
    if spec is None:
        return down
    if spec.target:
        down["target", shards, own] = f"target network, every {spec.target:,} updates of the server"
    return {("gradients", own, shards): "gradients, a slice for each part, with the version it was made with"} | down


def _label(thing: Any) -> str:
    if isinstance(thing, RolloutQueue):
        return f"RolloutQueue: {thing.slots} slots × {thing.T + 1} rows × {thing.lanes} lanes"
    if isinstance(thing, SampleQueue):
        back = "" if isinstance(thing.replay.sampler, Uniform) else ", and priorities back"
        return f"SampleQueue: {thing.n} batches of {thing.replay.batch}{back}"
    if isinstance(thing, Hogwild | Chunked):
        return f"shared: {thing.weights:,} weights and {thing.optim.name}'s {', '.join(thing.optim.statistics)}"
    if isinstance(thing, TrainingQueue):
        return f"training queue: at most {thing.capacity} chunks × {thing.T + 1} rows"
    return f"Params: {thing.size:,} weights"


def _box(title: str, rows: list[str]) -> list[str]:
    width = max(len(title) + 3, *(len(r) for r in rows)) + 2
    top = f"┌─ {title} " + "─" * (width - len(title) - 3) + "┐"
    return [top, *(f"│ {r.ljust(width - 1)}│" for r in rows), "└" + "─" * width + "┘"]
