"""Spiking networks in torch: the SRM neuron, surrogate gradients, layers with a member axis, and three architectures."""
