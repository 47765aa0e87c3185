"""Adapters: models of other libraries, and of your own, that stop early under a calibrated rule.

    engine = from_module([m1, ..., mK], step=step)   any torch module that goes one step at a time
    engine = from_snntorch([net1, ..., netK])        and from_spikingjelly, from_norse, from_sinabs
    engine = from_nir(["a.nir", "b.nir"], dt=1e-3)   networks in NIR, on our own engines
    rule = AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1)
    rule = rule.calibrate(engine.score(x_cal, y_cal))
    run = engine.decide(rule, x_new)                 stops computing an input soon after the rule
                                                     stops
    session = engine.live(rule)                      one live input
    EarlyClassifier(forest, 20, 0.9).fit(X, y)       any scikit-learn classifier, on time series;
                                                     `AeonEarlyClassifier` for aeon
    EarlyRegressor(ridge, 20, 0.9, max_width=1.0)    any regressor: intervals

Each name is loaded on first use, and the library that it adapts only when it is called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agreestop.common.errors import needs

if TYPE_CHECKING:
    from .aeon_classifier import AeonEarlyClassifier as AeonEarlyClassifier
    from .comparing import Comparison as Comparison
    from .comparing import compare as compare
    from .engine import AdaptedEngine as AdaptedEngine
    from .estimators import EarlyClassifier as EarlyClassifier
    from .modules import from_module as from_module
    from .nir import from_nir as from_nir
    from .nir_export import to_nir as to_nir
    from .regressors import EarlyRegressor as EarlyRegressor
    from .spiking_libraries import from_norse as from_norse
    from .spiking_libraries import from_sinabs as from_sinabs
    from .spiking_libraries import from_snntorch as from_snntorch
    from .spiking_libraries import from_spikingjelly as from_spikingjelly

_LAZY = {
    "AdaptedEngine": "engine",
    "from_module": "modules",
    "from_norse": "spiking_libraries",
    "from_sinabs": "spiking_libraries",
}
_LAZY |= {"from_snntorch": "spiking_libraries", "from_spikingjelly": "spiking_libraries"}
_LAZY |= {
    "Comparison": "comparing",
    "compare": "comparing",
    "from_nir": "nir",
    "to_nir": "nir_export",
}
_LAZY |= {"EarlyClassifier": "estimators", "AeonEarlyClassifier": "aeon_classifier"}
_LAZY |= {"EarlyRegressor": "regressors"}
"""Public names, and the module of each."""

# AeonEarlyClassifier exists only where aeon is installed
__all__ = sorted(_LAZY.keys() - {"AeonEarlyClassifier"})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs(f"agreestop.adapters.{name}", extras="nir" if "nir" in _LAZY[name] else ""):
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
