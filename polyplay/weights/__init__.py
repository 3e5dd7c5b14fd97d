"""The weights of an agent as one flat vector: how versions are published and pulled, how gradients reach them."""

from polyplay.weights.agent_params import AgentParams
from polyplay.weights.allreduce import AllReduce, averaged
from polyplay.weights.chunked import Chunked
from polyplay.weights.flat import param_sizes
from polyplay.weights.hogwild import Hogwild
from polyplay.weights.outlier_losses import OutlierRule
from polyplay.weights.parameter_server import ParameterServer
from polyplay.weights.parameter_shard import serve_parameters
from polyplay.weights.params import Params
from polyplay.weights.update import Local, OptimizerSpec

__all__ = [
    "AgentParams",
    "AllReduce",
    "Chunked",
    "Hogwild",
    "Local",
    "OptimizerSpec",
    "OutlierRule",
    "ParameterServer",
    "Params",
    "averaged",
    "param_sizes",
    "serve_parameters",
]
