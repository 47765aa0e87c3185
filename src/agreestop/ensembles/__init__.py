"""Ensembles of K networks: deep and variational ones, their training and their files.

ensemble = agreestop.ensembles.DeepEnsemble(network, members=6).fit(x, y)
"""

from agreestop.common.errors import needs

with needs("agreestop.ensembles"):
    from .ensemble import DeepEnsemble, Ensemble, VariationalEnsemble, load
    from .files import Epoch, save_members

__all__ = ["DeepEnsemble", "Ensemble", "Epoch", "VariationalEnsemble", "load"]
__all__ += ["save_members"]
