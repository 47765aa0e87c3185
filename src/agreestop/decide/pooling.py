"""How the K members of an ensemble are pooled: the settings, and what each of them assumes.

`MergeConfidence` pools before calibration and costs nothing. The others calibrate each member by itself and pool the results at each
checkpoint.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats, InputError, as_count

from .confidence import as_exponent, pool_logs
from .merging import as_prefix_exponent, as_randomized_exponent, merging_factor, simple_factor
from .rule_files import KeptInFiles


@dataclass(frozen=True)
class MergeConfidence(KeptInFiles):
    """Confidence merging, CM(r): the generalised mean of the members' confidences; r = 1 is model averaging.

    Assumes nothing: the pooled confidence is a score like any other. It is not renormalised over classes.
    """

    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", as_exponent(self.r))

    def pool(self, log_confidence: NDArray[np.floating]) -> Floats:
        """(..., K, C) log-confidences to (..., C)."""
        return pool_logs(log_confidence, self.r, axis=-2)


MODEL_AVERAGE = MergeConfidence(r=1)

FORMS = ("any", "exchangeable", "randomized")


@dataclass(frozen=True)
class MergePValues(KeptInFiles):
    """P-variable merging, PM(r): a conformal p-variable for each member, then a_{r,K} · M_r of them.

    form "any" (default) assumes nothing about the dependence between members; `table=True` takes the printed constants.
    form "exchangeable" takes prefix minima, r > -1: members must be exchangeable, in an order fixed before any data; the promise
    is then over the draw of the members too. form "randomized", r = 0 or 1: any dependence, with one seeded uniform
    number per input, so that another seed may answer differently.

    For r ≥ K - 1 the merged set contains the union of the members' sets: it cannot stop before its slowest member.
    """

    r: float
    form: str = "any"
    table: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"form is {self.form!r}: choose one of {', '.join(FORMS)}.")
        check = {"any": as_exponent, "exchangeable": as_prefix_exponent, "randomized": as_randomized_exponent}[self.form]
        object.__setattr__(self, "r", check(self.r))
        if self.table and self.form != "any":
            raise InputError(f"table=True goes only with form='any': form {self.form!r} has one constant.")
        object.__setattr__(self, "seed", as_count(self.seed, "seed", least=0))

    def least_factor(self, K: int) -> float:
        """The constant of K p-variables; for the randomised form, the smallest it can be."""
        if self.form == "any":
            return merging_factor(self.r, K, self.table)
        return simple_factor(self.r) if self.form == "exchangeable" else 1.0


@dataclass(frozen=True)
class MergeRanks(KeptInFiles):
    """Rank pooling: p-variable merging without its price.

    Each member ranks the candidate among the n calibration examples, itself included; the generalised mean of the ranks is
    a score, and its conformal p-variable is taken in the same bag. Exactly valid by symmetry, no constant a_{r,K}.
    Costs n·K operations for each candidate class.
    """

    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", as_exponent(self.r))


@dataclass(frozen=True)
class MajorityVote(KeptInFiles):
    """Classes in more than half of the members' sets. Any dependence; each member works at half the miscoverage (α/2M)."""


Pooling = MergeConfidence | MergePValues | MergeRanks | MajorityVote
