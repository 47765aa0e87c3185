"""Spiking networks in torch: SRM neurons, three architectures with K members in one module, and
members that are modules of the user.
"""

from agreestop.common.errors import needs

with needs("agreestop.networks"):
    from agreestop.kernels.srm import Surrogate

    from .architectures import Architecture, Convolutional, FullyConnected, ResNet18, SpikingNetwork
    from .modules import ModuleMembers
    from .neurons import Neuron
    from .posteriors import ModulePosterior, Posterior

__all__ = ["Architecture", "Convolutional", "FullyConnected", "ModuleMembers", "ModulePosterior"]
__all__ += ["Neuron", "Posterior", "ResNet18", "SpikingNetwork", "Surrogate"]
