"""Read an ensemble from a file."""

from os import PathLike
from typing import Any

from agreestop.common import InputError
from agreestop.networks.architectures import ARCHITECTURES

from .deep import DeepEnsemble
from .files import fitting, read_file, restore_settings
from .sources import NetworkSource
from .variational import VariationalEnsemble


def load(
    path: str | PathLike[str], network: NetworkSource | None = None, *, device: str = "auto", engine: str = "auto"
) -> DeepEnsemble | VariationalEnsemble:
    """Read an ensemble that `ensemble.save` or `agreestop train` wrote, in this version or in 0.1.

    network: only for members that are modules of your own; the function that builds them, or the modules. A file of a posterior alone
    (`posterior.safetensors`) gives a variational ensemble that draws new members for every input.
    """
    tensors, header = read_file(path, "ensemble", "members", "posterior")
    if header["kind"] != "ensemble":
        tensors = {f"{header['kind']}/{name}": value for name, value in tensors.items()}
        header = {"ensemble": "deep" if header["kind"] == "members" else "variational", "network": header}
    about: dict[str, Any] = header["network"]
    source = _source(path, about, network)
    members = header.get("members") or about["settings"]["members"]
    given: dict[str, Any] = {"device": device, "engine": engine, "output": header.get("output", "logits")}
    ensemble: DeepEnsemble | VariationalEnsemble
    if header["ensemble"] == "deep":
        ensemble = DeepEnsemble(source, members, header.get("seed", 0), **given)
    else:
        given |= {"prior_variance": about["prior_variance"], "fresh": header.get("fresh", True)}
        ensemble = VariationalEnsemble(source, members, header.get("seed", 0), **given)
    ensemble.restore(path, tensors, header)
    return ensemble


def _source(path: str | PathLike[str], about: dict[str, Any], network: NetworkSource | None) -> NetworkSource:
    if about["architecture"] in ARCHITECTURES:
        if network is not None:
            raise InputError(f"{path} names its own network ({about['architecture']}): leave network out.")
        with fitting(path):
            return restore_settings(about)
    if network is None:
        kind = "modules of your own" if about["architecture"] is None else f"the architecture {about['architecture']}"
        raise InputError(f"{path} holds members that are {kind}: give what builds them too, load(path, network=...).")
    return network
