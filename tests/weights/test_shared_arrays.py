import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from polyplay.core.worker import Counters, RunControl, WorkerContext
from polyplay.envs.pool import Envs
from polyplay.nets import NetworkFactory
from polyplay.weights.hogwild import Chunked, Hogwild
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.params import Params, SharedArrays, module_nbytes, param_sizes
from polyplay.weights.update import AllReduce, BoundUpdate, Local, OptimizerSpec, Update

ADAM, RMSPROP = OptimizerSpec("adam"), OptimizerSpec("rmsprop_tf")
NET = nn.Linear(9, 2)  # 20 weights, no buffers


def _update(update: Update) -> Update:
    """mypy sees that it is one."""
    return update


UPDATES = [
    _update(Local(ADAM)),
    _update(AllReduce(ADAM, 2, 20)),
    _update(Hogwild(ADAM, 20, 20, 2)),
    _update(Chunked(ADAM, 20, 20, 2, 3)),
    _update(ParameterServer(ADAM, 20, 20, 2, 4)),
]


def test_params_of_a_network_and_of_a_factory_are_of_its_size():
    policy = NetworkFactory("mlp", Envs("toy:catch", 4).spec)
    net = policy()
    for params in (Params.of(policy, 3), Params.of(net, readers=3)):
        assert (params.size, params.readers) == (param_sizes(net)[1], 3)
    assert Params.of(net).readers == 1


def test_labels_say_what_crosses():
    assert Params(1234).label() == "Params: 1,234 weights"
    assert Hogwild(RMSPROP, 1000, 1200, 2).label() == "shared: 1,000 weights and rmsprop_tf's square"
    assert Chunked(ADAM, 1000, 1200, 2).label() == "shared: 1,000 weights and adam's exp_avg, exp_avg_sq"
    assert ParameterServer(ADAM, 1000, 1200, 2, 4).label() == "1,000 weights, in 4 parts of a version each"
    assert AllReduce(ADAM, 3, 20).label() == "gradients: their mean over 3"


def test_titles_say_how_a_learner_updates():
    titles = ["Local(adam)", "AllReduce(adam) of 2", "Hogwild(adam), no lock"]
    assert [u.title() for u in UPDATES] == [*titles, "Chunked(adam), 3 parts", "ParameterServer(adam), 4 shards"]


@pytest.mark.parametrize(
    ("shared", "least"),
    [
        (Params(1000, 3), 4 * 2 * 1000),
        (AllReduce(ADAM, 2, 1000), 4 * (2 + 3) * 1000),  # gradients; weights and two statistics
        (Hogwild(ADAM, 1000, 1000, 2), 4 * 3 * 1000),
        (Chunked(ADAM, 1000, 1000, 2), 4 * 3 * 1000),
        (ParameterServer(ADAM, 1000, 1000, 2, 4), 4 * (2 + 2 + 2) * 1000),  # gradients, statistics, copies
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, SharedArrays) else "",
)
def test_bytes_are_those_of_its_arrays(shared: SharedArrays, least: int):
    assert least <= shared.nbytes <= least + 5000  # counters of a cache line each


def test_a_workers_own_bytes():
    one = 4 * 20
    assert module_nbytes(NET) == one
    copy = Hogwild(ADAM, 20, 20, 2, copy=False)
    assert [u.worker_nbytes(NET) / one for u in UPDATES] == [4.0, 0.5, 2.0, 2.0, 2.0]
    assert copy.worker_nbytes(NET) / one == 1.0
    buffered = nn.BatchNorm1d(5)
    assert AllReduce(ADAM, 2, 20).worker_nbytes(buffered) == 1.5 * module_nbytes(buffered)


def test_patience_travels_and_close_ends_waits():
    for shared in (u for u in UPDATES if isinstance(u, SharedArrays)):
        assert shared.patience > 0.0
        shared.patience = 0.0
    hogwild = Hogwild(ADAM, 20, 20, 2)
    hogwild.patience = 0.5
    assert hogwild.patience == 0.5
    hogwild.close()  # nobody waits for it


def test_every_update_binds_to_a_vector():
    for update in UPDATES:
        ctx = WorkerContext("learn", 0, 2, 0, 0, Counters(1), RunControl())
        vector = update.vector(ctx, nn.Linear(9, 2))
        bound = update.bind(ctx, vector)
        assert isinstance(bound, BoundUpdate)
        assert isinstance(bound.optimizer, torch.optim.Optimizer)
        assert (bound.waited, bound.gate) == (0.0, None)
        with bound.still():
            assert np.array_equal(vector.read(), bound.vector.read())


@pytest.mark.parametrize("shared", [Params(20), *(u for u in UPDATES if isinstance(u, SharedArrays))])
def test_one_that_was_sent_maps_the_same_memory(shared: SharedArrays):
    shared.patience = 0.25
    sent = cloudpickle.loads(cloudpickle.dumps(shared))
    assert (sent.patience, sent.nbytes, sent.label()) == (0.25, shared.nbytes, shared.label())
    for name in shared._places:
        getattr(shared, name)[...] = 1
        assert (getattr(sent, name) == 1).all()
