"""The configuration of a run: a TOML file in which every key must be known and every value is
checked when it is read.

    name = "digits"

    [data]
    name = "digits"
    seed = 0
    views = 3                             # how often each training digit is shown
    # name = "n-mnist"                    # or another data set of `agreestop data list`
    # folder = "..."                      # and the folder with its files
    # name = "files"                      # or your own data, as `agreestop.events.files` reads it
    # training = "a.npz"                  # a file for each part: training, tuning and pool
    # file = "all.npz"                    # or one file, divided at random
    # shares = [0.6, 0.15, 0.25]          # into parts of these shares

    [network]
    architecture = "fully-connected"      # or "convolutional", "resnet18"
    hidden = [256]
    learned = true                        # train time constants and thresholds too

    [[ensembles]]
    kind = "deep"                         # or "variational"
    members = 6
    epochs = 6

    [decide]
    target = 0.9
    max_set_size = 3
    checkpoints = [20, 40, 60, 80]        # steps; by default, the quarters of the inputs' steps

A key that is left out has the default that is given below. Paths are relative to the
working directory.
"""

import re
import reprlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from agreestop.common import (
    InputError,
    as_checkpoints,
    as_max_set_size,
    is_integer,
    is_number,
    read_file,
)
from agreestop.common.levels import as_target
from agreestop.engines.protocol import ENGINES
from agreestop.events.datasets.catalogue import NAMES

OWN_FILES = "files"
FILE_KEYS = ("training", "tuning", "pool", "file", "shares")
WITHOUT_FOLDER = ("digits", OWN_FILES)
WITH_VIEWS = ("digits", "mnist-dvs-sim")
# architectures, and the keys of their sizes
NETWORKS = {
    "fully-connected": ("hidden",),
    "convolutional": ("channels", "hidden"),
    "resnet18": ("width",),
}
POSTERIOR_KEYS = ("kl_weight", "warm_up", "prior_variance", "initial_deviation", "fresh")
SURROGATES = ("arctan", "sigmoid", "triangle", "fast-sigmoid", "superspike")
LARGEST_FILE = 2**20  # bytes
# time constants and thresholds, as in `networks.neurons`, whose import is slow
LARGEST_CONSTANT = 10_000


class _Values(NamedTuple):
    """The values that a key may have: a test, and words for one of them and for several."""

    include: Callable[[Any], bool]
    one: str
    several: str


VALUES = {
    str: _Values(lambda value: isinstance(value, str), "a text", "texts"),
    bool: _Values(lambda value: isinstance(value, bool), "true or false", "true and false"),
    int: _Values(is_integer, "a whole number", "whole numbers"),
    float: _Values(is_number, "a finite number", "finite numbers"),
}
COUNT = _Values(
    lambda value: is_integer(value) and 1 <= value < 2**31,
    "a whole number of at least 1",
    "whole numbers of at least 1",
)
SEED = _Values(
    lambda value: is_integer(value) and 0 <= value < 2**63,
    "a whole number from 0 to 2^63 - 1",
    "seeds",
)
DEVICE = _Values(
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"auto|cpu|cuda(:\d)?", value)),
    "'auto', 'cpu' or 'cuda'",
    "",
)
POSITIVE = _Values(
    lambda value: is_number(value) and value > 0, "a positive number", "positive numbers"
)
WEIGHT = _Values(
    lambda value: is_number(value) and value >= 0, "a number of at least 0", "numbers of at least 0"
)
SHARE = _Values(
    lambda value: is_number(value) and 0 <= value <= 1,
    "a number from 0 to 1",
    "numbers from 0 to 1",
)
PROBABILITY = _Values(
    lambda value: is_number(value) and 0 < value < 1,
    "a number strictly between 0 and 1",
    "numbers strictly between 0 and 1",
)
STEP = _Values(is_number, "a step", "steps, whole numbers of at least 1 that increase")
CONSTANT = _Values(
    lambda value: is_number(value) and 0 < value <= LARGEST_CONSTANT,
    f"a positive number of at most {LARGEST_CONSTANT:,}",
    "constants",
)
Count: TypeAlias = Annotated[int, COUNT]
Seed: TypeAlias = Annotated[int, SEED]
Positive: TypeAlias = Annotated[float, POSITIVE]
Constant: TypeAlias = Annotated[float, CONSTANT]
Probability: TypeAlias = Annotated[float, PROBABILITY]


@dataclass(frozen=True)
class DataSettings:
    """The data: a data set by name, or with name = "files" your own.

    name      a data set of `agreestop data list`, or "files"
    seed      chooses the parts, their order, and everything that is simulated
    views     digits and mnist-dvs-sim: how often each training input is shown, every time with
              another motion
    folder    the folder with the files of the data set, where it has some (for mnist-dvs-sim
              those of MNIST)
    training  "files": the file to train on
    tuning    "files": the file to tune rules on
    pool      "files": the file that is divided into calibration and test
    file      "files": one file instead of these three, which is divided at random
    shares    "files": the shares of that one file that become training, tuning and pool; left out:
              [0.6, 0.15, 0.25]
    """

    name: str = "digits"
    seed: Seed = 0
    views: Count = 3
    folder: str | None = None
    training: str | None = None
    tuning: str | None = None
    pool: str | None = None
    file: str | None = None
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.name not in (*NAMES, OWN_FILES):
            raise InputError(
                f"data.name is {_shown(self.name)}: choose one of {', '.join(NAMES)}; or for your "
                f"own data give name = {OWN_FILES!r} with "
                "the paths training, tuning and pool, or file, of files that Events.save or "
                "numpy.savez wrote."
            )
        own = [name for name in FILE_KEYS if getattr(self, name) is not None]
        if self.name == OWN_FILES and not own:
            raise InputError(
                f"data.name is {OWN_FILES!r}, but no file is given: give training, tuning and "
                "pool, or file."
            )
        if self.name != OWN_FILES and own:
            raise InputError(
                f"data.{own[0]} is given for {self.name}: leave it out, or give name = "
                f"{OWN_FILES!r} for your own data."
            )
        if self.name not in WITHOUT_FOLDER and self.folder is None:
            raise InputError(
                f"data.folder is missing: give the folder with the files of {self.name}; "
                "`agreestop data list` says which."
            )


@dataclass(frozen=True)
class NetworkSettings:
    """The architecture of every member, its sizes, and its neurons. Times are in steps.

    architecture     the kind of network
    hidden           sizes of the hidden layers (fully-connected), or of those after the
                     convolutions (convolutional)
    channels         channels of each stage of a convolutional network
    width            channels of the first stage of a resnet18
    learned          whether time constants and thresholds are trained too
    membrane_time    time constant of the membrane potential
    synapse_time     time constant of the synaptic current
    refractory_time  time constant of the recovery after a spike
    threshold        the potential at which a neuron spikes
    surrogate        the slope that stands in for the derivative of a spike in training

    A time, threshold or surrogate that is left out has the default of the architecture.
    """

    architecture: Annotated[str, tuple(NETWORKS)] = "fully-connected"
    hidden: tuple[Count, ...] = (256,)
    channels: tuple[Count, ...] = (128, 128, 128, 128, 128)
    width: Count = 64
    learned: bool = True
    membrane_time: Constant | None = None
    synapse_time: Constant | None = None
    refractory_time: Constant | None = None
    threshold: Constant | None = None
    surrogate: Annotated[str, SURROGATES] | None = None


@dataclass(frozen=True)
class EnsembleSettings:
    """How the K members are made: trained one by one (deep), or drawn from one trained posterior
    (variational).

    kind               how the members are made
    members            K, the number of members
    epochs             how often training goes through the training inputs
    batch_size         inputs in each step of the optimiser
    learning_rate      learning rate of the optimiser
    readouts           the loss is taken at this many steps, evenly spread up to the last
    seed               chooses the initial weights, the order of the inputs, and the draws
                       from a posterior
    kl_weight          variational: weight of the KL term; 1 is the true ELBO
    warm_up            variational: share of the epochs in which the weight of the KL
                       term grows from 0
    prior_variance     variational: variance of the prior of every weight
    initial_deviation  variational: standard deviation of the posterior at the start, as a share of
                       that of the initial weights
    fresh              variational: draw K new members for every input, in calibration and in
                       decisions, instead of K for all inputs
    device             where the members are trained
    bf16               compute matrix products in bfloat16 during training

    A file without [[ensembles]] has a deep one with 6 epochs and a variational one.
    """

    kind: Annotated[str, ("deep", "variational")]
    members: Count = 6
    epochs: Count = 18
    batch_size: Count = 64
    learning_rate: Positive = 5e-3
    readouts: Count = 8
    seed: Seed = 0
    kl_weight: Annotated[float, WEIGHT] = 1.0
    warm_up: Annotated[float, SHARE] = 1.0
    prior_variance: Positive = 0.03
    initial_deviation: Positive = 0.3
    fresh: bool = False
    device: Annotated[str, DEVICE] = "cpu"
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.fresh and self.kind != "variational":
            raise InputError(
                "ensembles.fresh is true for a deep ensemble: only a variational one can draw new "
                "members for every input."
            )


@dataclass(frozen=True)
class DecideSettings:
    """The promise, and how it is measured: on random divisions of the pool into
    calibration and test.

    target         the probability with which an answer must hold the true class; all results of the
                   report but one figure are for it
    max_set_size   the largest set that may stop early
    n_calibration  the number of calibration examples, taken from the pool; the tuning part must
                   hold twice as many
    realisations   how many random divisions of the pool are measured
    checkpoints    the few steps of rules that do not look at every step; left out: the quarters of
                   the inputs' steps
    engine         what runs the members; [engines.md](engines.md) describes each
    targets        further targets, used only in the figure of coverage against the
                   target; [] for none

    The rules of a run are fixed; AgreeStop with a gate is one of them. Groups, weights, loss, trim
    and schedules are no keys of a run: give them to `agreestop calibrate` or in Python, with the
    score files that the run wrote (see [promises.md](promises.md)).
    """

    target: Probability = 0.9
    max_set_size: Count = 3
    n_calibration: Count = 50
    realisations: Count = 50
    checkpoints: tuple[Annotated[float, STEP], ...] | None = None
    engine: Annotated[str, ENGINES] = "auto"
    targets: tuple[Probability, ...] = (0.8, 0.85, 0.9, 0.92)

    def __post_init__(self) -> None:
        try:
            for target in (self.target, *self.targets):
                as_target(target)
            as_max_set_size(self.max_set_size)
            steps = () if self.checkpoints is None else as_checkpoints(self.checkpoints)
        except InputError as error:
            raise InputError(f"decide: {error}") from None
        for step in steps:
            if not isinstance(step, int):
                raise InputError(
                    f"decide.checkpoints holds {step}: members are scored after whole steps, so "
                    "give whole numbers."
                )


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run: its name, data, network, ensembles and decisions.

    name  the name of the report, and of the folder of this run in `runs`
    """

    name: str = "digits"
    data: DataSettings = field(default_factory=DataSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    ensembles: tuple[EnsembleSettings, ...] = (
        EnsembleSettings("deep", epochs=6),
        EnsembleSettings("variational"),
    )
    decide: DecideSettings = field(default_factory=DecideSettings)

    def __post_init__(self) -> None:
        if not self.ensembles:
            raise InputError(
                "ensembles is empty: give at least one [[ensembles]] with kind = 'deep' or "
                "'variational'."
            )
        if (
            Path(self.name).name != self.name
            or self.name in ("", "..")
            or not self.name.isprintable()
        ):
            raise InputError(f"name is {_shown(self.name)}: give a name that can be a folder.")


def unused_keys(settings: DataSettings | NetworkSettings | EnsembleSettings) -> set[str]:
    """The keys that have no effect beside the others, such as the channels of a fully
    connected network.
    """
    if isinstance(settings, DataSettings):
        missing = {name for name in ("folder", *FILE_KEYS) if getattr(settings, name) is None}
        return missing if settings.name in WITH_VIEWS else missing | {"views"}
    if isinstance(settings, NetworkSettings):
        known = {name for sizes in NETWORKS.values() for name in sizes}
        return known - set(NETWORKS[settings.architecture])
    return set() if settings.kind == "variational" else set(POSTERIOR_KEYS)


def load_config(path: str | PathLike[str]) -> RunConfig:
    """Read a configuration from a TOML file. An unknown key is refused, and the sentence names
    known keys that look like it.
    """
    return load_settings(RunConfig, path)


Settings = TypeVar("Settings")


def load_settings(kind: type[Settings], path: str | PathLike[str]) -> Settings:
    """Read a TOML file into a dataclass of settings, which may hold other dataclasses. Unknown
    keys and wrong types are refused.
    """
    text = read_file(path, most=LARGEST_FILE)
    try:
        content = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}.") from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path} cannot be read as TOML: it holds a number of thousands of digits, or too many "
            "brackets."
        ) from None
    return _build(kind, content, "")


def _build(kind: type[Settings], content: Mapping[str, Any], prefix: str) -> Settings:
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind, include_extras=True)
    for name in content:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
            shown = name if name.isidentifier() and len(name) < 40 else _shown(name)
            raise InputError(
                f"the key {prefix}{shown} is not known: did you mean {' or '.join(near)}?"
            )
    values = {
        name: _value(types[name], value, f"{prefix}{name}") for name, value in content.items()
    }
    missing = [
        name
        for name, entry in known.items()
        if name not in values and entry.default is entry.default_factory is MISSING
    ]
    if missing:
        raise InputError(f"the key {prefix}{missing[0]} is missing: give it.")
    return kind(**values)


def _value(kind: Any, value: Any, key: str) -> Any:
    """The value of a key, as the type of its field wants it; an optional field is
    given or left out.
    """
    if type(None) in get_args(kind):
        (kind,) = (option for option in get_args(kind) if option is not type(None))
    several = get_origin(kind) is tuple
    entry = get_args(kind)[0] if several else kind
    if is_dataclass(entry):
        tables = value if several and isinstance(value, list) else [value]
        if not all(isinstance(one, dict) for one in tables) or (several and tables is not value):
            raise InputError(
                f"{key} is {_shown(value)}: "
                f"{f'tables, [[{key}]], are' if several else f'a table, [{key}], is'} needed."
            )
        built = tuple(_build(cast(type[Any], entry), one, f"{key}.") for one in tables)
        return built if several else built[0]
    allowed = entry.__metadata__[0] if get_origin(entry) is Annotated else VALUES[entry]
    if not isinstance(allowed, _Values):
        if value not in allowed:
            raise InputError(f"{key} is {_shown(value)}: choose one of {', '.join(allowed)}.")
        return value
    if several and not (isinstance(value, list) and all(allowed.include(one) for one in value)):
        raise InputError(f"{key} is {_shown(value)}: a list of {allowed.several} is needed.")
    if not several and not allowed.include(value):
        raise InputError(f"{key} is {_shown(value)}: {allowed.one} is needed.")
    return tuple(value) if several else value


def _shown(value: object) -> str:
    """A value for an error message, cut to a few words and without control characters."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"
