"""Ensembles of K networks: deep and variational ones, their training and their files.

ensemble = agreestop.ensembles.DeepEnsemble(network, members=6).fit(x, y)
"""

from .deep import DeepEnsemble
from .ensemble import Ensemble
from .loading import load
from .training import Epoch
from .variational import VariationalEnsemble

__all__ = ["DeepEnsemble", "Ensemble", "Epoch", "VariationalEnsemble", "load"]
