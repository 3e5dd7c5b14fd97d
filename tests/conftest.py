"""Tests share two cores with their own workers: one compute thread each, and the same bits everywhere."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
