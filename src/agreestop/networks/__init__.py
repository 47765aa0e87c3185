"""Spiking networks in torch: SRM neurons, three architectures with K members in one module, and
members that are modules of the user.
"""

from agreestop.common.errors import needs

with needs("agreestop.networks"):
    from agreestop.kernels import Surrogate

    from .architectures import Architecture, Convolutional, FullyConnected, ResNet18, SpikingNetwork
    from .modules import ModuleMembers
    from .neurons import SRM, Neuron, srm
    from .posteriors import ModulePosterior, Posterior

__all__ = ["SRM", "Architecture", "Convolutional", "FullyConnected", "ModuleMembers"]
__all__ += ["ModulePosterior", "Neuron", "Posterior", "ResNet18", "SpikingNetwork"]
__all__ += ["Surrogate", "srm"]
