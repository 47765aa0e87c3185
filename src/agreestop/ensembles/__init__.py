"""Ensembles of K spiking networks: deep ensembles and variational posteriors, their training and their files."""

from .trainable import TrainableMembers

__all__ = ["TrainableMembers"]
