"""Configurations: settings are read as they are written, and an error names the key that is unknown
or wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import agreestop as ag
from agreestop.pipeline import (
    DataSettings,
    DecideSettings,
    EnsembleSettings,
    NetworkSettings,
    RunConfig,
    load_config,
)
from agreestop.pipeline.config import LARGEST_CONSTANT, SURROGATES, unused_keys

WHOLE = """
name = "small"
[data]
views = 2
[network]
hidden = [16, 8]
learned = false
threshold = 0.5
[[ensembles]]
kind = "variational"
members = 3
learning_rate = 1
[decide]
target = 0.8
checkpoints = [10, 80]
"""


def read(tmp_path: Path, text: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_config(path)


def test_settings_are_read_as_written(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE)
    assert (
        config.name == "small"
        and config.data.views == 2
        and config.network == NetworkSettings(hidden=(16, 8), learned=False, threshold=0.5)
    )
    assert config.ensembles == (EnsembleSettings("variational", members=3, learning_rate=1),)
    assert config.decide == DecideSettings(target=0.8, checkpoints=(10, 80))


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    assert read(tmp_path, "") == RunConfig()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nam = 'x'", "the key nam is not known: did you mean name"),
        ("[decide]\ntargt = 0.9", "the key decide.targt is not known: did you mean target"),
        (
            "[[ensembles]]\nkind = 'deep'\nmember = 3",
            "ensembles.member is not known: did you mean members",
        ),
        ("[[ensembles]]\nmembers = 3", "ensembles.kind is missing"),
        ("[[ensembles]]\nkind = 'other'", "choose one of deep, variational"),
        (
            "[data]\nname = 'mine'",
            "or for your own data give name = 'files' with the paths training, tuning and pool, "
            "or file",
        ),
        ("[data]\nname = 'files'", "no file is given: give training, tuning and pool, or file"),
        (
            "[data]\nfile = 'x.npz'",
            "data.file is given for digits: leave it out, or give name = 'files'",
        ),
        (
            "[data]\nname = 'braille'",
            "data.folder is missing: give the folder with the files of braille",
        ),
        ("[data]\nname = 'files'\nfile = 3", "data.file is 3: a text is needed"),
        (
            "[data]\nname = 'n-mnist'",
            "data.folder is missing: give the folder with the files of n-mnist",
        ),
        ("[data]\nviews = 'two'", "data.views is 'two': a whole number of at least 1 is needed"),
        ("[data]\nviews = true", "data.views is True"),
        ("[network]\narchitecture = 'other'", "network.architecture is 'other'"),
        (
            "[network]\nhidden = 3",
            "network.hidden is 3: a list of whole numbers of at least 1 is needed",
        ),
        (
            "[network]\nhidden = [1.5]",
            "network.hidden is [1.5]: a list of whole numbers of at least 1 is needed",
        ),
        ("[network]\nlearned = 1", "network.learned is 1: true or false is needed"),
        ("[network]\nwidth = 0", "network.width is 0: a whole number of at least 1"),
        (
            "[[ensembles]]\nkind = 'deep'\nfresh = true",
            "only a variational one can draw new members",
        ),
        ("[decide]\ntarget = 2.0", "strictly between 0 and 1"),
        ("[decide]\ncheckpoints = [3, 2]", "checkpoints must increase"),
        ("[decide]\nrealisations = 0", "decide.realisations is 0: a whole number of at least 1"),
        ("data = 3", "data is 3: a table"),
        ("ensembles = []", "ensembles is empty"),
        ("name = '../x'", "a name that can be a folder"),
        ("name =", "cannot be read as TOML"),
        ("name = '..'", "name is '..': give a name that can be a folder"),
        ('name = "a\\u001b[31m"', "a name that can be a folder"),
        ("[data]\nseed = -1", "data.seed is -1: a whole number from 0 to 2^63 - 1 is needed"),
        (
            "[[ensembles]]\nkind = 'deep'\nseed = 9223372036854775808",
            "ensembles.seed is 9223372036854775808: a whole number from 0 to 2^63 - 1",
        ),
        ("[data]\nseed = " + "9" * 5000, "thousands of digits"),
        (
            "[data]\nseed = 0x" + "f" * 5000,
            "data.seed is a number of thousands of digits: a whole number from 0",
        ),
        (
            "[network]\nthreshold = 0x" + "f" * 5000,
            "network.threshold is a number of thousands of digits: a positive number of",
        ),
        (
            "[network]\nthreshold = inf",
            "network.threshold is inf: a positive number of at most 10,000 is needed",
        ),
        (
            "[network]\nmembrane_time = 1000000",
            "network.membrane_time is 1000000: a positive number of at most 10,000 is needed",
        ),
        (
            "[network]\nsynapse_time = 1e300",
            "network.synapse_time is 1e+300: a positive number of at most 10,000 is needed",
        ),
        (
            "[network]\nrefractory_time = 0",
            "network.refractory_time is 0: a positive number of at most 10,000 is needed",
        ),
        (
            "[network]\nthreshold = true",
            "network.threshold is True: a positive number of at most 10,000 is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\nlearning_rate = 0",
            "ensembles.learning_rate is 0: a positive number is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\nkl_weight = -0.1",
            "ensembles.kl_weight is -0.1: a number of at least 0 is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\nwarm_up = 1.5",
            "ensembles.warm_up is 1.5: a number from 0 to 1 is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\nprior_variance = nan",
            "ensembles.prior_variance is nan: a positive number is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\ninitial_deviation = -1",
            "ensembles.initial_deviation is -1: a positive number is needed",
        ),
        (
            "[decide]\ntarget = inf",
            "decide.target is inf: a number strictly between 0 and 1 is needed",
        ),
        ("name = " + "[" * 3000, "too many brackets"),
        (
            "[[ensembles]]\nkind = 'deep'\ndevice = 'gpu'",
            "ensembles.device is 'gpu': 'auto', 'cpu' or 'cuda' is needed",
        ),
        (
            "[[ensembles]]\nkind = 'deep'\nmembers = 99999999999",
            "ensembles.members is 99999999999: a whole number",
        ),
        (
            "[decide]\ncheckpoints = [10.5, 20]",
            "decide.checkpoints holds 10.5: members are scored after whole steps",
        ),
        (
            "[decide]\ntargets = [1.5]",
            "decide.targets is [1.5]: a list of numbers strictly between 0 and 1 is needed",
        ),
        (
            "[decide]\nmax_set_size = 0",
            "decide.max_set_size is 0: a whole number of at least 1 is needed",
        ),
        ("'" + "k" * 5000 + "' = 1", "is not known"),
        ('"a\\u001b[31m" = 1', "is not known"),
    ],
)
def test_an_error_names_the_key(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ag.InputError) as caught:
        read(tmp_path, text)
    assert match in str(caught.value)
    assert (
        len(str(caught.value).replace(str(tmp_path), "")) < 300 and str(caught.value).isprintable()
    )


def test_devices_of_a_configuration(tmp_path: Path) -> None:
    for device in ("auto", "cpu", "cuda", "cuda:1"):
        assert (
            read(tmp_path, f"[[ensembles]]\nkind = 'deep'\ndevice = '{device}'").ensembles[0].device
            == device
        )


def test_a_missing_file_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ag.InputError, match="there is no file"):
        load_config(tmp_path / "none.toml")


def test_a_configuration_knows_the_surrogates_and_limits_of_the_networks() -> None:
    pytest.importorskip("torch", reason="networks need PyTorch")
    from agreestop.kernels import SLOPES
    from agreestop.networks.neurons import LARGEST

    assert set(SURROGATES) == set(SLOPES) and LARGEST_CONSTANT == LARGEST


def test_keys_without_effect_are_known() -> None:
    """A report leaves them out."""
    files = {"folder", "training", "tuning", "pool", "file", "shares"}
    assert unused_keys(DataSettings()) == files
    assert unused_keys(DataSettings(name="files", file="a.npz")) == files - {"file"} | {"views"}
    sizes = {
        "fully-connected": {"channels", "width"},
        "convolutional": {"width"},
        "resnet18": {"hidden", "channels"},
    }
    assert {name: unused_keys(NetworkSettings(architecture=name)) for name in sizes} == sizes
    assert unused_keys(EnsembleSettings("variational")) == set()
    assert unused_keys(EnsembleSettings("deep")) == {
        "kl_weight",
        "warm_up",
        "prior_variance",
        "initial_deviation",
        "fresh",
    }
