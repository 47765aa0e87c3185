"""What needs a package that is not installed says so in one sentence, which names the extra of
agreestop that installs it.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import needs
from agreestop.common.errors import MissingPackage

OPTIONAL: tuple[str, ...] = (
    "torch",
    "safetensors",
    "numba",
    "matplotlib",
    "jinja2",
    "sklearn",
    "nir",
    "h5py",
    "ray",
    "pyarrow",
)
OPTIONAL += ("starlette", "uvicorn", "websockets", "pandas", "aeon", "triton")

ENTRIES = {  # public entry points, and what they say where no optional package is installed
    "import agreestop.networks": "torch 'agreestop[networks]'",
    "import agreestop.ensembles": "torch 'agreestop[networks]'",
    "import agreestop.export": "torch 'agreestop[engines]'",
    "import agreestop.cluster": "torch 'agreestop[cluster]'",
    "ag.networks": "torch 'agreestop[networks]'",
    "ag.ensembles": "torch 'agreestop[networks]'",
    "ag.export": "torch 'agreestop[engines]'",
    "ag.cluster": "torch 'agreestop[cluster]'",
    "ag.engines.choose_engine": "torch 'agreestop[networks]'",
    "ag.engines.EventDriven": "torch 'agreestop[engines]'",
    "ag.adapters.from_module": "torch 'agreestop[networks]'",
    "ag.adapters.from_snntorch": "torch 'agreestop[networks]'",
    "ag.adapters.from_nir": "torch 'agreestop[nir]'",
    "ag.adapters.to_nir": "torch 'agreestop[nir]'",
    "ag.adapters.EarlyClassifier": "scikit-learn 'agreestop[learn]'",
    "ag.adapters.EarlyRegressor": "scikit-learn 'agreestop[learn]'",
    "ag.adapters.AeonEarlyClassifier": "scikit-learn 'agreestop[learn]'",
    "ag.plot": "matplotlib 'agreestop[figures]'",
    "ag.write_report(ag.simulate_scores(300), 'report.html')": "matplotlib 'agreestop[figures]'",
    "ag.serve.Server": "uvicorn|starlette 'agreestop[serve]'",
    "ag.serve.Client('ws://127.0.0.1:1')": "websockets 'agreestop[serve]'",
    "ag.serve.AsyncClient('ws://127.0.0.1:1').__aenter__().send(None)": (
        "websockets 'agreestop[serve]'"
    ),
    "ag.events.load_data_set('digits')": "scikit-learn 'agreestop[learn]'",
    "ag.LearnedRisk.fit(ag.simulate_scores(60).at((20, 40)), max_set_size=1)": (
        "scikit-learn 'agreestop[learn]'"
    ),
    "ag.AgreeStop(0.9, (20, 40), 1).calibrate(ag.simulate_scores(60))"
    ".decide(ag.simulate_scores(60)).to_dataframe()": "pandas pandas",
}
COMMANDS = {  # the same on the command line
    "run": "torch|matplotlib 'agreestop[engines,figures,learn]'",
    "run --simulated": "matplotlib 'agreestop[figures]'",
    "train": "torch 'agreestop[engines,learn]'",
    "train own.toml": "torch 'agreestop[networks]'",
    "train --ray local": "torch 'agreestop[cluster]'",
    "score": "torch 'agreestop[engines,learn]'",
    "score --ray local": "torch 'agreestop[cluster]'",
    "score x.npz --members m -o s.npz": "torch 'agreestop[networks]'",
    "score x.npz --members m -o s.npz --ray local": "torch 'agreestop[cluster]'",
    "report scores.npz -o r.html": "matplotlib 'agreestop[figures]'",
    "export a.rule --members m --to c -o c": "torch 'agreestop[engines]'",
    "serve a.rule": "uvicorn|starlette 'agreestop[serve]'",
}
CHILD = """
import io, json, sys, warnings
for name in {optional}:
    sys.modules[name] = None
warnings.simplefilter("ignore")
import agreestop as ag
from agreestop.cli import main
said = {{}}
for entry in {entries}:
    try:
        exec(entry)
    except ImportError as error:
        said[entry] = [isinstance(error, ag.InputError), str(error)]
for words in {commands}:
    sys.argv, sys.stderr, sys.stdout = ["agreestop", *words.split()], io.StringIO(), io.StringIO()
    try:
        main()
    except SystemExit as ended:
        said[words] = [ended.code == 2, " ".join(sys.stderr.getvalue().split())]
    sys.stderr, sys.stdout = sys.__stderr__, sys.__stdout__
print(json.dumps(said))
"""


def test_every_entry_point_names_what_to_install(tmp_path: Path) -> None:
    scores = ag.simulate_scores(300)
    ag.save_scores(tmp_path / "scores.npz", scores)
    ag.AgreeStop(0.9, (20, 40), 1).calibrate(scores).save(tmp_path / "a.rule")
    code = CHILD.format(optional=OPTIONAL, entries=list(ENTRIES), commands=list(COMMANDS))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for entry, words in (ENTRIES | COMMANDS).items():
        package, install = words.split()
        right, sentence = said.get(entry, (False, "nothing"))
        expected = rf"needs ({package}), which is not installed: pip install {re.escape(install)}"
        assert right and re.search(expected, sentence), (entry, sentence)
        assert sentence.count("pip install") == 1 and sentence.endswith("."), (entry, sentence)
        extra = re.fullmatch(r"'agreestop(\[[\w,]+\])'", install)
        assert extra is None or f"(in a clone '.{extra[1]}')" in sentence, (entry, sentence)


def hide(monkeypatch: pytest.MonkeyPatch, name: str, *users: str) -> None:
    """Make a package look as if it were not installed; `users` are our modules that imported it
    already.
    """
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    for user in users:
        monkeypatch.delitem(sys.modules, user, raising=False)
        package, _, last = user.rpartition(".")
        if package in sys.modules:
            monkeypatch.delattr(sys.modules[package], last, raising=False)


def graph_file(folder: Path) -> Path:
    (folder / "a.nir").touch()
    return folder / "a.nir"


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("h5py", "nir", lambda folder: ag.adapters.from_nir(graph_file(folder))),
        ("nir", "nir", lambda _: ag.adapters.to_nir(None)),
        (
            "pyarrow",
            "cluster",
            lambda folder: ag.cluster.save_recordings(
                folder / "a.parquet", np.ones((2, 3, 4), bool)
            ),
        ),
        (
            "ray",
            "cluster",
            lambda _: ag.cluster.map_tasks(ag.cluster.Actors("local"), lambda: str, [1]),
        ),
        ("snntorch", "", lambda _: ag.adapters.from_snntorch([])),
    ],
)
def test_packages_that_are_imported_late(
    package: str, extra: str, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="these packages are needed beside PyTorch")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as caught:
        call(tmp_path)
    name, install = (
        {"ray": "Ray"}.get(package, package),
        f"'agreestop[{extra}]'" if extra else package,
    )
    assert f"needs {name}, which is not installed: pip install {install}" in str(caught.value)
    assert (
        isinstance(caught.value, ag.InputError)
        and isinstance(caught.value, ImportError)
        and caught.value.name == package
    )


def test_the_event_driven_engine_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="engines need PyTorch")
    network = ag.networks.SpikingNetwork(
        ag.networks.FullyConnected((4,), 2, 1, (3,)), torch.Generator().manual_seed(0)
    )
    layout = importlib.import_module("agreestop.engines.event_driven.layout")
    layout.load_kernels.cache_clear()  # an earlier test may have loaded them
    prefix = "agreestop.kernels.cpu."
    hide(
        monkeypatch,
        "numba",
        f"{prefix}event_kernels",
        *(name for name in sys.modules if name.startswith(f"{prefix}event_")),
    )
    with pytest.raises(ag.InputError, match="engine needs numba"):
        ag.engines.choose_engine(network, "event-driven")


def test_networks_say_once_that_they_run_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="networks need PyTorch")
    operations = importlib.import_module("agreestop.networks.operations")
    monkeypatch.setattr(operations, "numba_available", lambda: False)
    operations._warn_of_slow_steps.cache_clear()
    x, weight = torch.zeros(2, 3, 4), torch.zeros(1, 4, 5)
    with pytest.warns(UserWarning, match=r"numba is not installed.*'agreestop\[engines\]'"):
        assert operations.linear(x, weight) is None
    assert operations.linear(x, weight) is None  # a second warning would be an error
    operations._warn_of_slow_steps.cache_clear()


def test_other_failures_of_imports_stay_as_they_are() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'") as caught,
        needs("this"),
    ):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, ag.InputError)
    sentence = (
        r"needs numba, which cannot be imported \(too old\): pip install 'agreestop\[engines\]'"
    )
    with pytest.raises(MissingPackage, match=sentence), needs("this", "numba"):
        raise ImportError("too old")
