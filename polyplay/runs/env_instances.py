"""An environment that was made already, given as `env=`: workers make their own, by what it was made from."""

from __future__ import annotations

from typing import Any

from polyplay.common.errors import UserError


def is_instance(env: object) -> bool:
    """Whether it is an environment, and not what makes one."""
    return not isinstance(env, str | type) and hasattr(env, "reset") and hasattr(env, "step")


def made_from(env: Any) -> tuple[str, dict[str, Any]]:
    """The id that Gymnasium made it by, and the keyword arguments. Raises UserError: it was not made so, or has been
    wrapped since.
    """
    import gymnasium

    spec = getattr(env, "spec", None)
    if spec is None or spec.additional_wrappers or spec.id not in gymnasium.registry:
        given = type(getattr(env, "unwrapped", env)).__name__
        cure = "give a function that makes one: env=lambda: …, or an id with wrapper=(…,)"
        raise UserError(f"env: an instance of {given} given, which workers cannot make again; {cure}")
    usual = gymnasium.registry[spec.id].max_episode_steps
    limit = {} if spec.max_episode_steps == usual else {"max_episode_steps": spec.max_episode_steps}
    return spec.id, {**{k: v for k, v in spec.kwargs.items() if k != "render_mode"}, **limit}
