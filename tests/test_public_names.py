"""The public names are these and no others. Importing them loads numpy and nothing heavier; the
other packages load on first use.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import agreestop as ag

ROOT = Path(__file__).parents[1]
NAMES = {
    # confidences and p-variables
    "log_confidence",
    "generalized_mean",
    "p_values",
    # merging
    "merging_factor",
    "merge_p_values",
    # how members become one
    "MergeConfidence",
    "MergePValues",
    "MergeRanks",
    "MajorityVote",
    # scores and risks
    "LogLoss",
    "Temperature",
    "TuningRanks",
    "Spread",
    "TopMass",
    "FixedTime",
    "Gate",
    "GiveUp",
    "LearnedRisk",
    "ShapedRisk",
    "VoteRisk",
    # open answers
    "Answers",
    "sample_until",
    # rules
    "Schedule",
    "SpikeCP",
    "AgreeStop",
    "DCSNN",
    "SEENN",
    "StopRule",
    "IntervalStop",
    "Numbers",
    "Tree",
    # streams without an end
    "Spotter",
    "Detection",
    # choosing a score or a risk
    "tune",
    "front",
    "Tuned",
    # calibrated rules and decisions
    "CalibratedRule",
    "Session",
    "Decision",
    "Decisions",
    "evaluate",
    "Evaluation",
    "repeat_splits",
    "Splits",
    # drift
    "DriftMonitor",
    "AdaptiveRule",
    # files
    "load_rule",
    "Scores",
    "load_scores",
    "save_scores",
    "save_spikes",
    # simulated data
    "simulate_scores",
    # what goes wrong
    "InputError",
    "CalibrationWarning",
}

MOST_NAMES = 58
PAGES = [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("examples/**/*.py")]
ON_NO_PAGE = {
    *(
        "CalibratedRule",
        "Evaluation",
        "Session",
        "InputError",
        "CalibrationWarning",
    ),  # what calls return and raise
    *(
        "generalized_mean",
        "merge_p_values",
        "merging_factor",
        "p_values",
    ),  # the pieces of the theory
    *("LogLoss", "StopRule", "save_scores", "Splits"),
}
"""Names that stay although no page but the API page has them."""
GONE = ("majority_vote", "merge_exchangeable", "merge_randomized")
INNER = ("Alarm", "Estimate", "FrontPoint", "Shaped", "Trial", "simulate_spikes")

PACKAGES = ("adapters", "cluster", "engines", "ensembles", "events", "export", "networks", "serve")
ELSEWHERE = ("plot", "write_report")
HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "typer", "rich", "pandas", "jax")


def test_public_names_are_exactly_these() -> None:
    assert set(ag.__all__) == NAMES
    assert len(ag.__all__) == len(NAMES)


def test_there_are_few_public_names() -> None:
    """A name that no page or example uses is not public, with few exceptions."""
    assert len(NAMES) <= MOST_NAMES
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    unused = {name for name in NAMES if not re.search(rf"\b{name}\b", pages)}
    assert unused <= ON_NO_PAGE


@pytest.mark.parametrize("name", GONE)
def test_a_removed_name_says_what_to_use(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"^agreestop\.{name} is gone in 0\.3: use SpikeCP\(.*\)\.$"
    ):
        getattr(ag, name)


@pytest.mark.parametrize("name", INNER)
def test_a_name_that_is_not_public_any_more_says_where_it_is(name: str) -> None:
    with pytest.raises(AttributeError, match="not a public name any more") as refused:
        getattr(ag, name)
    where = str(refused.value).rsplit(" ", 1)[1].rstrip(".")
    assert getattr(import_module(where), name).__doc__
    assert not hasattr(ag, name)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert ag.__version__ == metadata.version("agreestop")
    assert (
        printed("import sys, agreestop; print('importlib.metadata' in sys.modules)").strip()
        == "False"
    )


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in NAMES:
        assert getattr(ag, name).__doc__, name


def test_a_star_import_brings_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from agreestop import *", found)
    assert set(found) - {"__builtins__"} == NAMES


def printed(code: str) -> str:
    """What the code prints in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_loads_nothing_heavy() -> None:
    heavy = (*HEAVY, *(f"agreestop.{name}" for name in PACKAGES))
    code = (
        f"import sys, agreestop; dir(agreestop); print(*(name for name in {heavy!r} if name in "
        "sys.modules))"
    )
    assert printed(code).split() == []


def test_packages_are_attributes_but_no_public_names() -> None:
    assert {*PACKAGES, *ELSEWHERE} <= set(dir(ag)) and not {"TYPE_CHECKING", "import_module"} & set(
        dir(ag)
    )
    assert not {*PACKAGES, *ELSEWHERE} & set(ag.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ag.nothing  # noqa: B018


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_loads_on_first_use(name: str) -> None:
    pytest.importorskip("torch", reason="networks need PyTorch")
    assert (
        printed(f"import agreestop as ag; print(ag.{name}.__name__)").strip() == f"agreestop.{name}"
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_of_a_package_exists_and_is_documented(name: str) -> None:
    pytest.importorskip("torch", reason="networks need PyTorch")
    package = import_module(f"agreestop.{name}")
    assert package.__doc__ and package.__all__ and len(set(package.__all__)) == len(package.__all__)
    for public in package.__all__:
        assert getattr(package, public).__doc__, f"agreestop.{name}.{public}"


def test_figures_and_the_report_load_on_first_use_without_networks() -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    code = (
        "import sys, agreestop as ag; sys.modules['torch'] = None; print(ag.plot.__name__, "
        "ag.write_report.__name__)"
    )
    assert printed(code).split() == ["agreestop.report.plot", "write_report"]
    assert all(getattr(ag.plot, name).__doc__ for name in ag.plot.__all__)


def test_a_missing_dependency_is_named_with_the_extra_that_installs_it() -> None:
    code = (
        "import sys, agreestop as ag\nsys.modules['torch'] = None\ntry:\n    "
        "ag.ensembles\nexcept ImportError as error:\n    print(error)"
    )
    assert printed(code).strip() == (
        "agreestop.ensembles needs torch, which is not installed: pip install "
        "'agreestop[networks]' (in a clone '.[networks]')."
    )
