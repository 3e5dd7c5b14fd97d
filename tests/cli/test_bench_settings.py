from __future__ import annotations

from typing import Any

import pytest

from polyplay import systems
from polyplay.cli import bench
from polyplay.core.tree import Field


def wire(system: str, env: str = "toy:catch", network: str = "mlp", cores: int = 2) -> bench.WiredSystem:
    return bench.wire(system, bench.keywords(system, env, network, "float32", cores))


@pytest.mark.parametrize("system", bench.MEASURED)
def test_every_page_can_be_wired_and_says_its_sizes(system: str):
    wired = wire(system)
    assert wired.kind == "toy"
    assert min(wired.lanes, wired.T, wired.B, wired.epochs, wired.workers) >= 1
    assert wired.values["network"] == "mlp"
    assert wired.changed["inputs"] == "raw" if "inputs" in wired.changed else True
    for key, value in bench.SETTINGS.get(system, lambda n: {})(2).items():
        assert wired.values[key] == value


@pytest.mark.parametrize("system", bench.SETTINGS)
def test_settings_suit_machines_of_all_sizes(system: str):
    for cores in (1, 3, 64):
        wired = wire(system, cores=cores)
        assert 1 <= wired.workers <= 64


SIZES: dict[str, tuple[Any, ...]] = {  # lanes acted for at once, T, B, passes, workers: of preset quick and SETTINGS
    "a2c": (16, 8, 16, 1, 2),
    "accel": (16, 32, 32, 3, 2),
    "appo": (32, 20, 32, 2, 3),
    "a3c": (1, 20, 1, 1, 2),
    "ga3c": (1, 10, 16, 1, 2),
    "impala": (32, 10, 32, 1, 3),
    "ppo": (8, 32, 8, 3, 2),
}


@pytest.mark.parametrize("system", SIZES)
def test_sizes_as_worked_out_by_hand(system: str, monkeypatch: pytest.MonkeyPatch):
    page = systems.load(system)
    monkeypatch.setattr(page, "cores", lambda: 2, raising=False)
    wired = wire(system)
    assert (wired.lanes, wired.T, wired.B, wired.epochs, wired.workers) == SIZES[system]


def test_turns_are_of_workers_that_act_and_learn_in_passes():
    assert {s: wire(s).turn for s in SIZES if wire(s).turn > 1} == {"ppo": 12, "accel": 12}  # 3 passes in 4 parts
    for system, more in (("accel", {"sync": "chunked"}), ("ppo", {"target_kl": 0.01})):
        assert bench.wire(system, {**wire(system).keywords, **more}).turn == 1


def test_who_learns_from_what_acting_computed():
    assert {s for s in SIZES if wire(s).reuse} == {"a2c", "accel"}
    assert not bench.wire("a2c", {**wire("a2c").keywords, "reuse": False}).reuse


def test_pictures_keep_what_the_preset_says_of_them():
    assert bench.pictures(Field((4, 84, 84), "uint8"))
    assert not bench.pictures(Field((4, 84, 84), "float32"))
    assert not bench.pictures({"a": Field((4, 84, 84), "uint8")})
    assert "inputs" not in bench.keywords("a2c", "toy:still", "a3c", "float32", 2)
    assert bench.keywords("a2c", "toy:catch", "mlp", "float32", 2)["inputs"] == "raw"
