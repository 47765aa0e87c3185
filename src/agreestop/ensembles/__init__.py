"""Ensembles of K spiking networks: deep ensembles and variational posteriors, their training and their files."""

from .deep import DeepEnsemble

__all__ = ["DeepEnsemble"]
