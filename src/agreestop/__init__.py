"""agreestop: decide when an ensemble watching a stream has seen enough, and be right as often as promised.

The names of the decision layer, which needs numpy alone, and the packages `agreestop.events`, `agreestop.networks`, `agreestop.engines`,
`agreestop.ensembles`, `agreestop.adapters`, `agreestop.cluster`, `agreestop.export` and `agreestop.serve` load on first use.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for True, as the constant of `typing`, which takes long to import
if TYPE_CHECKING:
    from agreestop import adapters as adapters
    from agreestop import cluster as cluster
    from agreestop import engines as engines
    from agreestop import ensembles as ensembles
    from agreestop import events as events
    from agreestop import export as export
    from agreestop import networks as networks
    from agreestop import serve as serve
    from agreestop.decide import *  # noqa: F403
    from agreestop.decide import __all__ as __all__
    from agreestop.pipeline.scores_report import write_report as write_report
    from agreestop.report import plot as plot

_PACKAGES = ("adapters", "cluster", "common", "decide", "engines", "ensembles", "events", "export", "networks", "serve")
_ELSEWHERE = {"plot": "agreestop.report.plot", "write_report": "agreestop.pipeline.scores_report"}
"""Names of the top level that are a module, or in a module, of another name."""


def __getattr__(name: str) -> object:
    """Load the decision layer, or a package of the spiking half, on first use."""
    if name in _PACKAGES or name in _ELSEWHERE:
        from agreestop.common.errors import needs

        with needs(f"agreestop.{name}"):
            module = import_module(_ELSEWHERE.get(name, f"agreestop.{name}"))
            return getattr(module, name, module)
    decide = import_module("agreestop.decide")
    if name != "__all__" and name not in decide.__all__:
        raise AttributeError(f"module 'agreestop' has no attribute {name!r}")
    return globals().setdefault(name, getattr(decide, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_ELSEWHERE, *import_module("agreestop.decide").__all__})
