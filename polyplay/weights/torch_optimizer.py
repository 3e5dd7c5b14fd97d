"""What optimisers here make of torch's: its class without its compiler, and when one pass over memory will do."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

FEW = 4096  # weights of which several passes are as fast as one, and need no compiler
State = dict[str, Tensor]  # of one parameter, by name
Group = dict[str, Any]  # settings of some parameters, as torch has them


class WithoutCompiler(torch.optim.Optimizer):
    """Torch's methods without the decorators that import its compiler (1.1 s, 70 MB of memory) to switch it off."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


def in_one_pass(*tensors: Tensor) -> bool:
    """Whether one pass over these will do: many float32 numbers of a CPU, each tensor in one piece."""
    plain = (x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in tensors)
    return tensors[0].numel() > FEW and all(plain)
