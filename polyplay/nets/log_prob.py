"""The logarithm of a probability: exact, or guarded against probabilities near 0, as GA3C has it.

Everything works on logits [..., n]; illegal values are those far below the largest. Acting and learning use the same
function, so ratios of the two are those of guarded probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyplay.common.errors import UserError

GUARDS = ("none", "max", "plus")


@dataclass(frozen=True)
class LogProbGuard:
    """π = softmax.

    kind    logarithm for value a     source
    none    log π(a)                  everyone; GA3C's code with USE_LOG_SOFTMAX
    max     log max(π(a), ε)          GA3C's code: no gradient at all where π(a) < ε
    plus    log(π(a) + ε)             GA3C's paper, eq. 5: the gradient stays finite
    H = −Σ π·(the same of π). Actions are drawn from π. Raises UserError for settings out of range.
    """

    kind: str = "none"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.kind not in GUARDS:
            raise UserError(f"guard is {self.kind!r}; use one of {', '.join(GUARDS)}")
        if not 0.0 < self.eps < 1.0:
            raise UserError(f"log_eps is {self.eps}; it must lie between 0 and 1")

    @property
    def exact(self) -> bool:
        """Nothing is guarded: the logarithm is log-softmax."""
        return self.kind == "none"

    def probabilities(self, logits: Tensor) -> Tensor:
        """π [..., n]."""
        return F.softmax(logits, -1)

    def logarithm(self, pi: Tensor) -> Tensor:
        """Of probabilities of any shape."""
        if self.kind == "plus":
            return (pi + self.eps).log()
        return pi.clamp_min(self.eps if self.kind == "max" else torch.finfo(pi.dtype).tiny).log()

    def chosen(self, logits: Tensor, value: Tensor) -> Tensor:
        """The logarithm for `value` [...] under logits [..., n]."""
        logp = F.log_softmax(logits, -1) if self.exact else self.logarithm(self.probabilities(logits))
        return logp.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """[...]"""
        if self.exact:
            logp = F.log_softmax(logits, -1)
            return -(logp.exp() * logp).sum(-1)
        pi = self.probabilities(logits)
        return -(pi * self.logarithm(pi)).sum(-1)


EXACT = LogProbGuard()
