"""Every format that the software reads, with a small valid file of each."""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import agreestop as ag
from agreestop.cluster import load_decisions, save_recordings
from agreestop.cluster.parts import (
    PLAN,
    PartSummary,
    columns_of_run,
    read_part,
    rule_mark,
    write_part,
    write_plan,
)
from agreestop.cluster.sources import ParquetFile
from agreestop.common import InputError, atomic_writer
from agreestop.decide.scores import load_spikes
from agreestop.engines import EarlyRun
from agreestop.ensembles import Epoch, save_members
from agreestop.ensembles.files import load_checkpoint, save_checkpoint, write_tensors
from agreestop.events import EventData, EventSplits
from agreestop.events.datasets import cifar10
from agreestop.events.datasets.braille import load_braille
from agreestop.events.datasets.catalogue import CacheWarning, cached
from agreestop.events.datasets.dvs_gesture import read_gesture_labels
from agreestop.events.datasets.moving_digits import _read_idx
from agreestop.events.files import read_outline
from agreestop.networks import Convolutional, FullyConnected, Posterior, SpikingNetwork
from agreestop.networks.digests import digest_of, network_settings
from agreestop.pipeline import load_config
from agreestop.pipeline.products import EnsembleFiles, _is_current, _recorded, load_operations
from tests.events.writers import write_aedat2, write_aedat3, write_n_mnist

from . import rules, texts
from .harness import Format
from .rules import CLASSES, forge_rule, scores

RNG = np.random.default_rng(0)
X = RNG.random((6, 5, 2, 4, 3)) < 0.3
LABELS = np.array([1, 0, 1, 2, 2, 0])
SPIKES = RNG.random((6, 5, 3, 4)) < 0.3
RECORDING = ag.events.checked_recording(
    RNG.integers(0, 34, 40),
    RNG.integers(0, 34, 40),
    RNG.random(40) < 0.5,
    np.sort(RNG.integers(0, 3000, 40)),
    (34, 34),
)
LARGE_RECORDING = ag.events.checked_recording(
    RECORDING.x, RECORDING.y, RECORDING.polarity, RECORDING.time, (128, 128)
)
DATA = EventData("some, training", True, X, LABELS, CLASSES, "events are simulated")
KEY = {"settings": "0123abcd"}
CONFIG = """name = "small"

[data]
name = "digits"
seed = 1

[network]
hidden = [32]
membrane_time = 8.0

[[ensembles]]
kind = "deep"
members = 3
learning_rate = 1e-3
device = "cpu"

[decide]
checkpoints = [1, 2, 4, 8]
target = 0.9
n_calibration = 50
"""


NETWORK = FullyConnected((2, 4, 3), classes=3, hidden=(5,), members=2)
CONVOLUTIONAL = Convolutional((2, 4, 3), classes=3, channels=(2,), hidden=(4,), members=2)


def write_members(path: Path) -> None:
    save_members(path, SpikingNetwork(NETWORK, torch.Generator().manual_seed(0)).eval())


def write_posterior(path: Path) -> None:
    posterior = Posterior(NETWORK, torch.Generator().manual_seed(0))
    write_tensors(
        path, posterior.state_dict(), {"kind": "posterior", **network_settings(posterior)}
    )


def write_ensemble(path: Path) -> None:
    ag.ensembles.DeepEnsemble(NETWORK, members=2, seed=0, device="cpu").fit(
        X, LABELS, epochs=1, progress=False
    ).save(path)


def write_variational(path: Path) -> None:
    ensemble = ag.ensembles.VariationalEnsemble(CONVOLUTIONAL, members=2, seed=0, device="cpu")
    ensemble.fit(X, LABELS, epochs=1, progress=False).save(path)


class OwnModule(torch.nn.Module):
    """A member that is no network of agreestop."""

    def __init__(self) -> None:
        super().__init__()
        self.read_out = torch.nn.Linear(24, 3)

    def forward(
        self, x_t: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x_t.flatten(1) if state is None else state + x_t.flatten(1)
        return self.read_out(total), total


def write_modules(path: Path) -> None:
    torch.manual_seed(0)
    ag.ensembles.DeepEnsemble(OwnModule, members=2, seed=0, device="cpu").fit(
        X, LABELS, epochs=1, progress=False
    ).save(path)


def read_ensemble(path: Path, network: Any = None) -> object:
    ensemble = ag.ensembles.load(path, network, device="cpu")
    return type(ensemble).__name__, ensemble.digest


def write_nir(path: Path) -> None:
    """A graph with every kind of parameter."""
    import nir

    rng = np.random.default_rng(3)
    step = np.full(4, 5e-3)
    neurons = nir.CubaLIF(
        tau_syn=step,
        tau_mem=2 * step,
        r=np.ones(4),
        v_leak=np.zeros(4),
        v_threshold=np.ones(4),
        v_reset=np.zeros(4),
    )
    first = nir.Conv2d(
        (5, 5), rng.normal(size=(2, 1, 3, 3)), (2, 2), (1, 1), (1, 1), 1, np.zeros(2)
    )
    pool = nir.SumPool2d(
        kernel_size=np.array([2, 2]), stride=np.array([1, 1]), padding=np.array([0, 0])
    )
    flatten = nir.Flatten(input_type={"input": np.array([2, 2, 2])}, start_dim=0, end_dim=-1)
    spiking = nir.IF(r=np.ones((2, 3, 3)), v_threshold=np.ones((2, 3, 3)))
    nir.write(
        path,
        nir.NIRGraph.from_list(
            first, spiking, pool, flatten, nir.Affine(rng.normal(size=(4, 8)), np.zeros(4)), neurons
        ),
    )


def read_nir(path: Path) -> object:
    return ag.adapters.from_nir(path, dt=1e-3).digest


def write_archive(path: Path, compress: bool, **arrays: Any) -> None:
    with atomic_writer(path) as stream:
        (np.savez_compressed if compress else np.savez)(stream, **arrays)


def write_checkpoint(path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(0.5)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    save_checkpoint(path, model, optimiser, [Epoch(1.0, 0.5, 0.0)], KEY)


def read_checkpoint(path: Path) -> object:
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(model.parameters())
    history = load_checkpoint(path, model, optimiser, KEY)
    return history, model.state_dict(), optimiser.state_dict()


def write_cache(path: Path) -> None:
    cached(path.parent, "cache-file", lambda: EventSplits(DATA, DATA, DATA))
    (path.parent / "cache-file.npz").replace(path)


def read_cache(path: Path) -> object:
    """The cache never refuses: it warns and makes the frames again."""

    def make() -> EventSplits:
        raise InputError("made again.")

    copy = path.parent / "cache-file.npz"
    copy.write_bytes(path.read_bytes())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            return cached(path.parent, "cache-file", make)
    finally:
        copy.unlink(missing_ok=True)


def write_batch(path: Path) -> None:
    records = np.random.default_rng(2).integers(0, 256, (4, 3073), np.uint8)
    records[:, 0] = [0, 9, 3, 1]
    path.write_bytes(records.tobytes())


def read_batch(path: Path) -> object:
    cifar10.RECORDS = 4
    return cifar10.read_batch(path)


def write_idx(path: Path) -> None:
    content = bytes((0, 0, 8, 3)) + np.array([3, 4, 5], ">u4").tobytes() + bytes(range(60))
    path.write_bytes(gzip.compress(content, mtime=0))


def read_idx(path: Path) -> object:
    copy = path.with_name("idx-file.gz")
    copy.write_bytes(path.read_bytes())
    return _read_idx(path.parent, "idx-file", 3)


def write_key(path: Path) -> None:
    product = path.with_name("product")
    with _recorded(product, ["settings", 1]):
        product.write_bytes(b"content")
    product.with_name("product.key").replace(path)


def read_key(path: Path) -> object:
    """A key that is not the one that was written only means that the product is made again."""
    path.with_name("product.key").write_bytes(path.read_bytes())
    if not _is_current(path.with_name("product"), ["settings", 1]):
        raise InputError("made again.")
    return True


def read_energy(path: Path) -> object:
    files = EnsembleFiles(path.parent)
    files.energy.write_bytes(path.read_bytes())
    return vars(load_operations(files))


def read_braille(path: Path) -> object:
    return list(load_braille(path, None))


def read_mapped(path: Path) -> object:
    events = ag.events.load(path)
    return events, events.to_dense()


def read_decisions(path: Path) -> object:
    decided = load_decisions(path, ag.AgreeStop(0.8, (1, 2, 3, 4), 1).calibrate(scores()))
    return decided.stop_index, decided.sets, decided.best, decided.first_risk


def write_part_file(path: Path) -> None:
    """Decisions of a shard with their summary, as a worker writes them."""
    calibrated = ag.AgreeStop(0.8, (1, 2, 3, 4), 1).calibrate(scores())
    decided = calibrated.decide(scores())
    run = EarlyRun(decided, np.full(40, 4), 0.0, np.full(40, 8))
    summary = PartSummary.of(decided, run.computed, (0, 0))
    write_part(
        path,
        columns_of_run([run], 0, np.arange(40, dtype=np.uint64), {}),
        summary,
        "key",
        rule_mark(calibrated),
    )


def read_part_file(path: Path) -> object:
    """A worker decides a shard again whose file it cannot use."""
    summary = read_part(path, "key")
    if summary is None:
        raise InputError("made again.")
    return summary, read_decisions(path)


def write_plan_file(path: Path) -> None:
    folder = path.with_name("job")
    folder.mkdir(exist_ok=True)
    write_part_file(folder / "part-000000.parquet")
    write_plan(folder, "key", [0])
    path.write_bytes((folder / PLAN).read_bytes())


def read_plan_file(path: Path) -> object:
    folder = path.with_name("job")
    (folder / PLAN).write_bytes(path.read_bytes())
    return read_decisions(folder)


def read_recordings(path: Path) -> object:
    part = ParquetFile(str(path), X.shape[2:]).read(0, len(X))
    return part.events, part.carried


def forge_archive(content: bytes, change: Callable[[bytes], bytes], seed: int) -> bytes:
    """Change one member, or its name, and make an archive with the right checksums and without a
    digest.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [
            (name, archive.read(name)) for name in archive.namelist() if name != "digest.npy"
        ]
    index = seed % len(members)
    name, member = members[index]
    members[index] = (
        (members[(seed // 7) % len(members)][0], member)
        if seed % 11 == 0
        else (name, change(member))
    )
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(
            stream, "w", zipfile.ZIP_DEFLATED if seed % 2 else zipfile.ZIP_STORED
        ) as archive,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # zipfile warns if a name comes twice
        for name, member in members:
            archive.writestr(zipfile.ZipInfo(name), member)
    return stream.getvalue()


def forge_gzip(content: bytes, change: Callable[[bytes], bytes], seed: int) -> bytes:
    return gzip.compress(change(gzip.decompress(content)), mtime=0)


def forge_tensors(content: bytes, change: Callable[[bytes], bytes], seed: int) -> bytes:
    """Change our own header or that of safetensors; the digest is repaired, or left out as in
    version 0.1.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    own = json.loads(header["__metadata__"]["agreestop"])
    own.pop("digest")
    if seed % 3 == 0:
        header["__metadata__"]["agreestop"] = json.dumps(own)
        new = change(json.dumps(header).encode())
        return len(new).to_bytes(8, "little") + new + content[8 + length :]
    text = change(json.dumps(own).encode()).decode("utf-8", "replace")
    with suppress(ValueError, TypeError, RecursionError):  # no JSON any more
        if seed % 3 == 1:
            forged = json.loads(text)
            text = json.dumps(
                {**forged, "digest": digest_of(safetensors.torch.load(content), forged)}
            )
    header["__metadata__"]["agreestop"] = text
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + content[8 + length :]


def forge_nir(content: bytes, change: Callable[[bytes], bytes], seed: int) -> bytes:
    """Change the numbers of one parameter."""
    import h5py

    stream = io.BytesIO(content)
    with h5py.File(stream, "r+") as file:
        found: list[Any] = []
        file.visititems(
            lambda _, entry: (
                found.append(entry)
                if isinstance(entry, h5py.Dataset) and entry.dtype.kind in "if"
                else None
            )
        )
        chosen = found[seed % len(found)]
        raw = chosen[()].tobytes()
        changed = change(raw)[: len(raw)].ljust(len(raw), b"\0")
        chosen[()] = np.frombuffer(changed, chosen.dtype).reshape(chosen.shape)
    return stream.getvalue()


FORGES = {
    **dict.fromkeys(
        (
            "scores",
            "spikes",
            "events",
            "counts",
            "part",
            "dense",
            "packed",
            "outline",
            "packed outline",
            "cache",
            "braille",
            "energy",
        ),
        forge_archive,
    ),
    **dict.fromkeys(
        ("members", "posterior", "ensemble", "variational", "modules", "checkpoint"), forge_tensors
    ),
    **dict.fromkeys((form.name for form in rules.FORMATS), forge_rule),
    "idx": forge_gzip,
    "nir": forge_nir,
}

FORMATS = {
    form.name: form
    for form in (
        Format(
            "scores",
            lambda path: ag.save_scores(path, replace(scores(), lengths=np.arange(40) % 4 + 1)),
            ag.load_scores,
        ),
        Format("spikes", lambda path: ag.save_spikes(path, SPIKES, LABELS), load_spikes),
        Format(
            "events",
            lambda path: ag.events.Events.from_dense(X, LABELS, CLASSES).save(path),
            read_mapped,
            digest=True,
        ),
        Format(
            "counts",
            lambda path: (
                ag.events.Events.from_dense(3 * X.astype(np.uint8), LABELS)
                .rows([4, 0, 1])
                .save(path)
            ),
            read_mapped,
            digest=True,
        ),
        Format(
            "part",
            lambda path: ag.events.save_events(path, DATA),
            ag.events.load_events,
            digest=True,
        ),
        Format(
            "dense",
            lambda path: write_archive(
                path, False, inputs=X, labels=LABELS, classes=np.array(CLASSES)
            ),
            read_mapped,
        ),
        Format(
            "compressed",
            lambda path: write_archive(path, True, inputs=X.astype("f4"), labels=LABELS),
            read_mapped,
        ),
        Format(
            "packed",
            lambda path: write_archive(
                path,
                True,
                inputs=np.packbits(X),
                inputs_shape=np.array(X.shape),
                labels=LABELS,
                held=np.array(0),
            ),
            ag.events.load_events,
        ),
        Format(
            "outline",
            lambda path: ag.events.Events.from_dense(X, LABELS, CLASSES).save(path),
            read_outline,
        ),
        Format(
            "packed outline",
            lambda path: write_archive(
                path, True, inputs=np.packbits(X), inputs_shape=np.array(X.shape), labels=LABELS
            ),
            read_outline,
        ),
        Format("cache", write_cache, read_cache, digest=True),
        Format("aedat2", lambda path: write_aedat2(path, LARGE_RECORDING), ag.events.read_aedat2),
        Format("aedat3", lambda path: write_aedat3(path, LARGE_RECORDING), ag.events.read_aedat3),
        Format("n-mnist", lambda path: write_n_mnist(path, RECORDING), ag.events.read_n_mnist),
        Format(
            "labels",
            lambda path: path.write_bytes(
                b"class,startTime_usec,endTime_usec\n1,10,20\n11,30,45\n"
            ),
            read_gesture_labels,
        ),
        Format("idx", write_idx, read_idx),
        Format("cifar10", write_batch, read_batch),
        Format(
            "braille",
            lambda path: write_archive(path, True, x=X.reshape(30, 4, 6), y=np.arange(30) % 3),
            read_braille,
        ),
        Format("members", write_members, read_ensemble, digest=True),
        Format("posterior", write_posterior, read_ensemble, digest=True),
        Format("ensemble", write_ensemble, read_ensemble, digest=True),
        Format("variational", write_variational, read_ensemble, digest=True),
        Format("modules", write_modules, partial(read_ensemble, network=OwnModule), digest=True),
        Format("checkpoint", write_checkpoint, read_checkpoint, digest=True),
        Format(
            "energy",
            lambda path: write_archive(
                path, True, emitted=SPIKES, accumulates=SPIKES, multiplies=SPIKES
            ),
            read_energy,
        ),
        Format("key", write_key, read_key, digest=True),
        Format("nir", write_nir, read_nir, needs=("nir", "h5py")),
        Format(
            "recordings.parquet",
            lambda path: save_recordings(
                path, ag.events.Events.from_dense(X, LABELS), ids=list("abcdef")
            ),
            read_recordings,
            needs=("pyarrow",),
        ),
        Format("decisions.parquet", write_part_file, read_decisions, needs=("pyarrow",)),
        Format("shard.parquet", write_part_file, read_part_file, needs=("pyarrow",)),
        Format("plan", write_plan_file, read_plan_file, needs=("pyarrow",)),
        Format("configuration", lambda path: path.write_text(CONFIG), load_config),
        *rules.FORMATS,
        *texts.FORMATS,
    )
}
FORMATS |= {
    f"{name}, forged": replace(FORMATS[name], name=f"{name}, forged", digest=False, forge=forge)
    for name, forge in FORGES.items()
}
