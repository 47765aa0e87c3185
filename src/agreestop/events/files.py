"""Files of event streams: a `.npz` of inputs (booleans as packed bits), labels and names, in which nothing is executed or unpickled."""

from __future__ import annotations

from os import PathLike

import numpy as np

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer

from .data import EventData


def save_events(path: str | PathLike[str], data: EventData) -> None:
    """Write event streams, whole or not at all."""
    with atomic_writer(path) as stream:
        np.savez_compressed(
            stream,
            allow_pickle=False,
            inputs=np.packbits(data.inputs.ravel()) if data.inputs.dtype == np.bool_ else data.inputs,
            inputs_shape=np.array(data.inputs.shape),
            labels=data.labels,
            classes=np.array(data.classes),
            name=np.array(data.name),
            simulated=np.array(data.simulated),
            description=np.array(data.description),
            held=np.array(data.held or 0),
        )


def load_events(path: str | PathLike[str]) -> EventData:
    """Read event streams that `save_events` wrote."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:  # noqa: PTH123
            content = {name: file[name] for name in file.files}
        if "log_confidence" in content or "spikes" in content:
            raise InputError(f"{path} holds scores, not inputs: give the inputs themselves, or leave the members out.")
        shape = tuple(int(size) for size in content["inputs_shape"])
        inputs = content["inputs"]
        if inputs.ndim == 1:
            inputs = np.unpackbits(inputs, count=int(np.prod(shape))).view(np.bool_).reshape(shape)
        classes = tuple(str(name) for name in content["classes"])
        held = int(content.get("held", 0)) or None
        words = str(content["name"]), bool(content["simulated"]), str(content["description"])
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: check the path.") from None
    except InputError:
        raise
    except Exception:  # whatever zip, zlib and numpy make of bytes that are not theirs
        raise InputError(f"{path} is not a whole file of event streams: write one with save_events or `agreestop score`.") from None
    return EventData(words[0], words[1], inputs, content["labels"], classes, words[2], held)
