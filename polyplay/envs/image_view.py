"""Convert images in observations according to the options --images, --stack, --gray, --size and --frame-skip.

A view converts each image to [planes, height, width], and leaves other parts of an observation unchanged. The view
makes the image gray, resizes it, then stacks it with the previous images. At the start of an episode, the first image
fills the whole stack. Wrappers apply a view to the observations of an environment.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.core.tree import Batch, Tree
from polyplay.envs import masks, pettingzoo
from polyplay.envs.atari_emulator import opencv_gray, resizer
from polyplay.envs.images import BARE, PLANES, ImageLayout, ImageOptions, image_layout
from polyplay.envs.pool import EPISODE_CUT, closest_names, space_from_json, space_to_json
from polyplay.envs.spaces import inner_path, one_line, subspaces

Frames = dict[str, np.ndarray]  # path of an image → its stack of frames
FINAL = "final_obs", "final_observation"  # keys of info for an episode's last observation; second: Gymnasium before 1.0


class _Camera:
    """Converter of one image to planes [P, H, W]."""

    def __init__(self, space: Any, layout: ImageLayout, options: ImageOptions, where: str):
        self.given, self.layout = space.shape, layout
        frames = space.shape[layout.axes[0]] if len(layout.axes) == 4 else 1
        planes, *size = layout.shape
        self.frames, self.colors = frames, planes // frames
        self.gray = options.gray and self.colors != 1
        if self.gray and self.colors != 3:
            raise UserError(f"--gray: {where} has {self.colors} planes, allowed: 3 (red, green, blue) or 1")
        to = options.size or tuple(size)
        if to[0] > size[0] or to[1] > size[1]:
            given, own = "x".join(map(str, to)), "x".join(map(str, size))
            raise UserError(f"--size: {given} given, larger than {where} of {own}; allowed: up to that")
        self.resize = None if to == tuple(size) else resizer("area", *size, *to)
        self.planes = frames if self.gray else planes
        self.shape = (self.planes * max(options.stack, 1), *to)
        if self.shape[0] > PLANES:
            raise UserError(
                f"--stack: {options.stack} given, {where} then has {self.shape[0]} planes; at most {PLANES}"
            )
        self.space = gym.Box(int(space.low.min()), int(space.high.max()), self.shape, np.uint8)
        if (again := image_layout(self.space)) is not None and again.moves:
            text = f"{where} then is {list(self.shape)}, whose planes can't be told from columns; stack fewer frames"
            raise UserError(f"--stack: {options.stack} given, {text}")

    def planes_of(self, image: np.ndarray) -> np.ndarray:
        """Convert an image to planes, uint8 [P, H, W]."""
        made = self.layout.of(image)
        if self.gray:
            colors = made.reshape(self.frames, self.colors, *made.shape[1:])
            made = np.stack([opencv_gray(np.moveaxis(frame, 0, -1)) for frame in colors])
        return made if self.resize is None else np.stack([self.resize(plane) for plane in made])

    def stacked(self, image: np.ndarray, before: np.ndarray | None) -> np.ndarray:
        """Return the stack with `image` as its newest. `before`: the previous stack, or None if an episode starts."""
        made = self.planes_of(image)
        if before is None:
            return np.tile(made, (self.shape[0] // self.planes, 1, 1))
        return np.concatenate([before[self.planes :], made])


class ImageView:
    """Converter of the images in observations. `given`: the environment's observation space. `space`: the space after
    the conversion. `images`: paths of the images. Raises UserError if an option does not fit the observations.
    """

    def __init__(self, space: gym.Space, options: ImageOptions, title: str):
        self.given, self.options = space, options
        leaves = dict(_leaves(space))
        names = list(leaves) if options.leaves is None else [_named(n, leaves, title) for n in options.leaves]
        layouts = {path: _layout(leaves[path], path, options) for path in names}
        found = {path: layout for path, layout in layouts.items() if layout is not None}
        self.cameras = {p: _Camera(leaves[p], layout, options, _where(title, p)) for p, layout in found.items()}
        self.images = tuple(self.cameras)
        if options.changes and not found:
            shown = ", ".join(f"{path or BARE}: {one_line(leaf)}" for path, leaf in leaves.items())
            raise UserError(f"{options.changes}: {title} shows no image, but {shown}; name one by --images LEAF")
        self.space = self._space(space)

    def _space(self, space: gym.Space, path: str = "") -> gym.Space:
        if path in self.cameras:
            return self.cameras[path].space
        inner = subspaces(space)
        if inner is None:
            return space
        made = {key: self._space(part, inner_path(path, key)) for key, part in inner.items()}
        return gym.Tuple(list(made.values())) if isinstance(space, gym.Tuple) else gym.Dict([*made.items()])

    def show(self, obs: Any, before: Frames | None) -> tuple[Any, Frames]:
        """Return the converted observation, and the stacks of its images. Parts that do not fit the environment's space
        stay unchanged. `before`: the stacks of the previous step, or None at the start of an episode.
        """
        frames: Frames = {}
        return self._show(obs, self.given, "", before, frames), frames

    def _show(self, obs: Any, space: gym.Space, path: str, before: Frames | None, frames: Frames) -> Any:
        camera = self.cameras.get(path)
        if camera is not None:
            if not isinstance(obs, np.ndarray) or obs.shape != camera.given or obs.dtype != np.uint8:
                return obs
            frames[path] = camera.stacked(obs, None if before is None else before.get(path))
            return frames[path]
        inner = subspaces(space) or {}
        if isinstance(space, gym.Dict) and isinstance(obs, Mapping):
            again = partial(self._show, before=before, frames=frames)
            return {k: again(v, inner[k], inner_path(path, k)) if k in inner else v for k, v in obs.items()}
        if isinstance(space, gym.Tuple) and isinstance(obs, tuple | list) and len(obs) == len(inner):
            parts = zip(obs, space.spaces, strict=True)
            return tuple(self._show(v, s, inner_path(path, str(i)), before, frames) for i, (v, s) in enumerate(parts))
        return obs


def view_to_json(view: ImageView) -> Row:
    """Convert a view to JSON: the environment's observation space, and the image options."""
    shown = masks.without_mask(view.given)
    return {"observation": space_to_json(shown), **asdict(view.options)}


def view_from_json(given: Row, title: str) -> ImageView:
    """Make a view from the JSON of `view_to_json`. Raises KeyError, TypeError or ValueError if the JSON is damaged."""
    leaves = None if given["leaves"] is None else tuple(given["leaves"])
    options = ImageOptions(leaves, given["stack"], given["gray"], tuple(given["size"]))
    return ImageView(space_from_json(given["observation"]), options, title)


def _leaves(space: gym.Space, path: str = "") -> Iterator[tuple[str, gym.Space]]:
    inner = subspaces(space)
    if inner is None:
        yield path, space
    for key, part in (inner or {}).items():
        yield from _leaves(part, inner_path(path, key))


def _where(title: str, path: str) -> str:
    return f"the image {path or BARE} of {title}"


def _named(name: str, leaves: Mapping[str, gym.Space], title: str) -> str:
    known = [path or BARE for path in leaves]
    if name not in known:
        near = closest_names(name, known)
        raise UserError(f"--images: {name} given{near}; allowed for {title}: none, or some of {', '.join(known)}")
    return name if name in leaves else ""


def _layout(space: gym.Space, path: str, options: ImageOptions) -> ImageLayout | None:
    """Return an image's layout, or None for other parts. Raises UserError if --images names a part that is no image."""
    if options.leaves is None:
        return image_layout(space)
    name, fit = path or BARE, "allowed: a Box of uint8 [H, W], [H, W, C], [C, H, W], or a stack of these"
    if not isinstance(space, gym.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3, 4):
        cure = "wrap the environment (gymnasium.wrappers.TransformObservation)"
        raise UserError(f"--images: {name} given, which is {one_line(space)}; {fit}: {cure}")
    if (layout := image_layout(space, 1)) is None:
        cure = "wrap the environment so that it has fewer planes than pixels of a side"
        raise UserError(f"--images: {name} given, {list(space.shape)}: planes can't be told from columns; {cure}")
    return layout


class ImageWrapper(gymnasium.Wrapper):
    """Wrapper that applies a view to a single environment, and repeats each action for `skip` frames."""

    def __init__(self, env: gymnasium.Env, options: ImageOptions, title: str):
        super().__init__(env)
        self.view, self.frames = ImageView(env.observation_space, options, title), Frames()
        self.skip = max(options.skip, 1)
        self.observation_space = self.view.space

    def reset(self, **how: Any) -> Any:
        """See gymnasium.Env."""
        found = self.env.reset(**how)
        return (self._show(found[0], None), *found[1:]) if isinstance(found, tuple) and len(found) == 2 else found

    def step(self, action: Any) -> Any:
        """See gymnasium.Env."""
        found: Any = self.env.step(action) if self.skip == 1 else self._repeat(action)
        return (self._show(found[0], self.frames), *found[1:]) if isinstance(found, tuple) and found else found

    def _repeat(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.skip):
            found: Any = self.env.step(copy.deepcopy(action))
            try:
                total += float(found[1])
                found = (found[0], total, *found[2:])
                if found[2] or found[3] or EPISODE_CUT in found[4]:
                    break
            except (TypeError, ValueError, IndexError):  # the lane reports this invalid result
                break
        return found

    def _show(self, obs: Any, before: Frames | None) -> Any:
        shown, self.frames = self.view.show(obs, before)
        return shown

    def get_state(self) -> Batch:
        """Return the stacks of all images, as arrays."""
        return {f"stack{i}": self.frames[path] for i, path in enumerate(self.view.images) if path in self.frames}

    def set_state(self, state: Batch) -> None:
        """Restore the stacks that get_state returned."""
        self.frames = {p: state[f"stack{i}"] for i, p in enumerate(self.view.images) if f"stack{i}" in state}


class VectorImages(VectorWrapper):
    """Wrapper that applies a view to a vector environment, in any reset mode."""

    def __init__(self, env: VectorEnv, options: ImageOptions, title: str):
        super().__init__(env)
        if options.skip:
            env.close()
            raise UserError(f"--frame-skip: given, but {title} is a vector environment; leave it out")
        self.view = ImageView(env.single_observation_space, options, title)
        self.single_observation_space = self.view.space
        self.observation_space = batch_space(self.view.space, env.num_envs)
        self.lanes: list[Frames | None] = [None] * env.num_envs
        self.ended = np.zeros(env.num_envs, bool)
        self.same = env.metadata.get("autoreset_mode") in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """See VectorEnv. Lanes for which options["reset_mask"] is false keep their images."""
        begin = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)), bool)
        obs, info = self.env.reset(seed=seed, options=options)  # reset may remove the mask from the options
        self.ended &= ~begin
        return self._show(obs, begin, ~begin), info

    def step(self, actions: Any) -> Any:
        """See VectorEnv."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        over = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        begin, self.ended = (over if self.same else self.ended), over
        if self.same and over.any():
            info = {**info, **{key: self._last(info[key], over) for key in FINAL if key in info}}
        return self._show(obs, begin, np.zeros(self.num_envs, bool)), reward, terminated, truncated, info

    def _show(self, obs: Any, begin: np.ndarray, still: np.ndarray) -> Tree:
        rows = []
        for i, one in enumerate(iterate(batch_space(self.view.given, self.num_envs), obs)):
            row, frames = self.view.show(one, None if begin[i] else self.lanes[i])
            if still[i] and self.lanes[i] is not None:
                row = self._again(row, frames, self.lanes[i] or {})
            else:
                self.lanes[i] = frames
            rows.append(row)
        out: Any = create_empty_array(self.view.space, self.num_envs)
        return concatenate(self.view.space, rows, out)

    def _again(self, row: Any, frames: Frames, before: Frames) -> Any:
        """Replace the images of a converted observation by the previous images, in place."""
        for path, made in frames.items():
            made[...] = before[path]
        return row

    def _last(self, last: Any, over: np.ndarray) -> np.ndarray:
        """Convert the last observations of ended episodes. Return an array of objects, with None for other lanes."""
        alone = isinstance(last, list | tuple) or (isinstance(last, np.ndarray) and last.dtype == object)
        each = last if alone else list(iterate(batch_space(self.view.given, self.num_envs), last))
        found = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            found[i] = None if each[i] is None else self.view.show(each[i], self.lanes[i])[0]
        return found


def wrapped(make: Callable[..., Any], keywords: set[str], options: ImageOptions, title: str) -> Callable[..., Any]:
    """Return a factory of environments, single or vector, with converted images. It takes the keywords of `make`."""

    def build(num_envs: Any = None, autoreset_mode: Any = None, vector_kwargs: Any = None) -> Any:
        given = {"num_envs": num_envs, "autoreset_mode": autoreset_mode, "vector_kwargs": vector_kwargs}
        env = make(**{name: value for name, value in given.items() if name in keywords and value is not None})
        if isinstance(env, VectorEnv):
            return VectorImages(env, options, title)
        return ImageWrapper(env, options, title) if isinstance(env, gymnasium.Env) else _refused(env, options, title)

    return partial(
        build, **{name: None for name in ("num_envs", "autoreset_mode", "vector_kwargs") if name not in keywords}
    )


def _refused(made: Any, options: ImageOptions, title: str) -> Any:
    if pettingzoo.is_parallel(made) or pettingzoo.is_turn_based(made):
        raise UserError(f"{options.given}: {title} has several players; wrap it (supersuit), and leave the option out")
    return made  # a later check rejects it
