"""Ensembles of K networks: deep and variational ones, their training and their files."""

from .training import Epoch

__all__ = ["Epoch"]
