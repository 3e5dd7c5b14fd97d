"""What may change when a run grows: options of its network and of its game, to larger ones of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Field
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.envs.spaces import Conditional, describe_actions, describe_fields
from polyplay.population.league import blocks_of_teams
from polyplay.runs import flags
from polyplay.runs.options import Page, RunOptions, Settings


def change_options(
    page: Page, settings: Settings, options: RunOptions, system: str, changes: Mapping[str, Any]
) -> tuple[Settings, RunOptions]:
    """The options of the grown run. Raises UserError: the system has no such option, nothing changes, or a size
    shrinks.
    """
    types, both = flags.option_types(page.Config), {**vars(settings), **vars(options)}
    for name in changes:
        if name not in both:
            raise UserError(f"{flags.flag(name)}: {system} has no such option")
    if changes.get("hidden"):
        changes = {**changes, **_with_hidden(both, changes["hidden"])}
    if not any(both[name] != value for name, value in changes.items()):
        raise UserError("surgery: nothing changes: give another --core-size, --hidden, --network or --env")
    if "core_size" in changes:
        _check_core(both, changes["core_size"])
    own = {k: flags.check_value(flags.flag(k), v, types[k]) for k, v in changes.items() if k in types}
    others = {k: v for k, v in changes.items() if k not in types}
    return replace(settings, **own), replace(options, **others)


def _check_core(before: Mapping[str, Any], size: int) -> None:
    if before.get("core") == "none":
        raise UserError(f"--core-size: {size} given, but RUN has no core: leave it out")
    if size < before["core_size"]:
        raise UserError(f"--core-size: {size} given, but RUN has {before['core_size']}, and networks only grow")


def _with_hidden(before: Mapping[str, Any], sizes: tuple[int, ...]) -> dict[str, Any]:
    """The network with layers of these sizes, and the activation that it has."""
    name, _, layers = str(before.get("network", "")).partition("(")
    words = [word for word in layers.rstrip(")").replace(" ", "").split(",") if word and not word.isdigit()]
    return {"network": f"{name}({','.join([*map(str, sizes), *words])})", "hidden": tuple(sizes)}


def check_games(old: Envs, new: Envs, league: bool) -> None:
    """Raises UserError: the new game is of another kind."""
    was, is_ = old.spec, new.spec
    for what, flaw in (("observations", _seen_flaw(was, is_)), ("actions", _acted_flaw(was, is_))):
        if flaw:
            raise UserError(f"--env: {new.title} given, whose {what} are of another kind than {old.title}'s: {flaw}")
    if (was.seats > 1) != (is_.seats > 1):
        raise UserError(f"--env: {new.title} given, which has {is_.seats} seats, but {old.title} has {was.seats}")
    teams = [blocks_of_teams(envs.spec.sides, envs.agents) for envs in (old, new)]
    if league and (teams[0] != teams[1] or was.bots != is_.bots):
        same = "teams" if teams[0] != teams[1] else "bots"
        raise UserError(f"--env: {new.title} given, but the matches of RUN's league were played with other {same}")


def _seen_flaw(was: EnvSpec, is_: EnvSpec) -> str:
    before, after = dict(tree.leaves(was.obs)), dict(tree.leaves(is_.obs))
    shown = f"{describe_fields(is_.obs)} instead of {describe_fields(was.obs)}"
    if isinstance(was.obs, Field) != isinstance(is_.obs, Field) or not before.keys() & after.keys():
        return shown
    for path in before.keys() & after.keys():
        kinds = (before[path].dtype, len(before[path].shape)), (after[path].dtype, len(after[path].shape))
        if kinds[0] != kinds[1] or type(was.classes.get(path)) is not type(is_.classes.get(path)):
            return shown
    return ""


def _acted_flaw(was: EnvSpec, is_: EnvSpec) -> str:
    before, after = dict(tree.leaves(was.action)), dict(tree.leaves(is_.action))
    shown = f"{describe_actions(is_.action)} instead of {describe_actions(was.action)}"
    if type(was.action) is not type(is_.action) or not before.keys() & after.keys():
        return shown
    if isinstance(was.action, Conditional) and was.action.first != cast("Conditional", is_.action).first:
        return shown
    same = all(type(before[path]) is type(after[path]) for path in before.keys() & after.keys())
    return "" if same else shown
