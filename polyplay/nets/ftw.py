"""FTW's torso (Jaderberg et al. 2019, supplement, figure S11), and one in kind for small views such as arena:ctf's
window. Numbers beside the view join in front of the last layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyplay.common import tree
from polyplay.common.errors import UserError
from polyplay.common.tree import Tree
from polyplay.envs.pool import EnvSpec
from polyplay.envs.space_files import byte_bounds
from polyplay.envs.spaces import describe_fields
from polyplay.nets.atari import image_scale
from polyplay.nets.axes import Axes, AxisSegment, linear_axes, observed_axis
from polyplay.nets.layers import ByteScale, Conv2d, Linear, initialise, pixels

LARGE = 36  # pixels of a side, from which on it is the paper's


class FTWTorso(nn.Module):
    """[N, C, H, W] bytes, alone or in a tree with numbers beside → [N, hidden]. Large views: 32 filters 8×8/4, 64
    4×4/2, twice 64 3×3 around which the input goes on. Small views: 32 filters 3×3, 64 3×3/2.
    """

    def __init__(self, spec: EnvSpec, hidden: int = 256, init: str = "orthogonal"):
        super().__init__()
        self.paths = [path for path, _ in tree.leaves(spec.obs)]
        fields = dict(tree.leaves(spec.obs))
        views = [path for path, field in fields.items() if len(field.shape) == 3 and field.dtype == "uint8"]
        if len(views) != 1 or any(len(fields[path].shape) > 1 for path in self.paths if path not in views):
            seen = describe_fields(spec.obs)
            raise UserError(f"--network ftw: takes one image of bytes and numbers beside it, here they are {seen}")
        (self.view,) = views
        self.scale = image_scale(spec, self.view)
        channels, *sides = fields[self.view].shape
        large = min(sides) >= LARGE
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1), (64, 3, 1)) if large else ((32, 3, 1), (64, 3, 2))
        self.convs = nn.ModuleList()
        for out, kernel, stride in layers:
            same = kernel // 2 if large and stride == 1 else 0
            self.convs.append(Conv2d(channels, out, kernel, stride, same))
            channels, sides = out, [(side + 2 * same - kernel) // stride + 1 for side in sides]
        if min(sides) < 1:
            raise UserError(
                f"--network ftw: takes an image of 5 × 5 or more, here it is {list(fields[self.view].shape)}"
            )
        bounds = {path: ends for path, ends in byte_bounds(spec).items() if path != self.view}
        self.scaled, self.scales = list(bounds), nn.ModuleList(ByteScale(*ends) for ends in bounds.values())
        view = AxisSegment("view", (channels, *sides), fixed=True)
        self.columns = view, *observed_axis(spec, one_hot=False, without=(self.view,))
        self.fc = Linear(sum(segment.size for segment in self.columns), hidden)
        self.features = hidden
        initialise(self, init)

    def forward(self, obs: Tree) -> Tensor:
        leaves = dict(tree.leaves(obs))
        x = pixels(leaves[self.view], *self.scale)
        for conv in self.convs:
            y = F.relu(conv(x))
            x = x + y if y.shape == x.shape else y
        numbers = [self._floats(path, leaves[path]).to(x.dtype) for path in self.paths if path != self.view]
        return F.relu(self.fc(torch.cat([x.flatten(1), *numbers], 1) if numbers else x.flatten(1)))

    def _floats(self, path: str, x: Tensor) -> Tensor:
        """A leaf [N, ...] as [N, numbers], bytes in [0, 1]; those that were normalized before are none any more."""
        flat = x.reshape(x.shape[0], -1)
        scaled = x.dtype == torch.uint8 and path in self.scaled
        return self.scales[self.scaled.index(path)](flat) if scaled else flat

    def axes(self) -> Axes:
        """See nets.axes."""
        return linear_axes("fc", (AxisSegment("features", (self.features,)),), self.columns)
