"""Reproduction of the paper: recipes, score files, figures and SEENN-II. Run `python -m paper
--help`.
"""
