"""Ids of Atari games before ALE/NAME-v5, such as PongNoFrameskip-v4: what to write instead of one. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

import gymnasium

from polyplay.common.errors import UserError

OLD = re.compile(r"(?:ale_py:)?([a-z]\w*?)(-ram)?(NoFrameskip|Deterministic)?(?:-v(\d+))?", re.IGNORECASE)
VERSION = re.compile(r"-v\d+$")
KINDS = {"noframeskip": "NoFrameskip", "deterministic": "Deterministic"}
PRESETS = {"0": " --atari dopamine, with its sticky actions", "4": " --atari baselines, as most wrap it"}


def game_of(name: str) -> str:
    """The Atari game in an id of any form and case; "": it has none, ale-py is missing, or an environment of another
    package has that name.
    """
    found = OLD.fullmatch(name)
    if found is None or (name in gymnasium.registry and not _is_ales(name)):
        return ""
    word, titles = found[1].replace("_", "").lower(), {title.lower(): title for title in games()}
    return titles[word] if word in titles and word not in _other_names() else ""


def replacement(name: str, shown: bool) -> str:
    """Why an id of old is refused, with the options to write instead; "": it is none. shown: its observations are
    something else than the whole screen, by obs_type=ram or a wrapper.
    """
    found = OLD.fullmatch(name)
    if found is None or found[4] not in (None, *PRESETS) or not (game := game_of(name)):
        return ""
    if found[2]:
        kind = KINDS.get((found[3] or "").lower(), "")
        return f"which ale-py no longer has: write --env {game}{kind}-v{found[4] or 4} --env-kwargs obs_type=ram"
    return "" if shown else f"which shows the whole screen: write --env ALE/{game}-v5{PRESETS.get(found[4] or '', '')}"


def register(name: str) -> None:
    """Register ale-py's environments, if the name is one of them and they are not registered yet."""
    if name not in gymnasium.registry and game_of(name):
        import ale_py  # noqa: F401 — importing it registers them


def current_names() -> list[str]:
    """All registered ids without those of old, and all games of ALE."""
    known = [id_ for id_ in gymnasium.registry if not _is_ales(id_)]
    return [*known, *(f"ALE/{title}-v5" for title in games())]


def games() -> Mapping[str, str]:
    """Of ale-py; empty without it."""
    from polyplay.envs.atari import native

    try:
        return native.games()
    except UserError:
        return {}


def _is_ales(id_: str) -> bool:
    return str(gymnasium.registry[id_].entry_point).startswith("ale_py")


def _other_names() -> set[str]:
    """Names without versions, in small letters, of registered environments of other packages."""
    return {VERSION.sub("", id_).lower() for id_ in gymnasium.registry if not _is_ales(id_)}
