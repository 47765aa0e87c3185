"""An ensemble and a rule as the text of C: `model.c` and `rule_data.h`, and the sizes of all
memory.
"""

import string
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .members import GEOMETRY, Members
from .rules import ExportedRule

POLICIES = ("AG_RISK", "AG_CHECKPOINTS", "AG_RUNNING", "AG_STOPPING", "AG_CONFIDENCE")

PLAIN = b" ,-.:;_" + (string.ascii_letters + string.digits).encode()

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
}

LAYER_BYTES, MEMBER_BYTES = 48, 8  # of `ag_layer` and `ag_member` where a pointer has 4 bytes


def sizes_of(
    members: Members, inputs: int, classes: int, history: int, steps: int
) -> dict[str, int]:
    """The sizes of all memory, by the names that C gives them."""
    layers = [layer for layers in members for layer in layers]
    windows = any(one[0].convolves for one in members)
    return {
        "AG_INPUTS": inputs,
        "AG_CLASSES": classes,
        "AG_MEMBERS": len(members),
        "AG_NEURONS": max(sum(layer.neurons for layer in one) for one in members),
        "AG_WIDEST": max(layer.geometry["outputs"] for layer in layers),
        "AG_SPIKES": max(inputs * windows, *(layer.neurons for layer in layers)),
        "AG_INTEGER_WEIGHTS": int(layers[0].weights.dtype == np.int8),
        "AG_BFLOAT16_WEIGHTS": int(layers[0].weights.dtype == np.uint16),
        "AG_HISTORY": history,
        "AG_STEPS": steps,
    }


def flash_of(members: Members) -> int:
    """Bytes of the numbers of the network."""
    layers = [layer for layers in members for layer in layers]
    numbers = sum(
        array.nbytes
        for layer in layers
        for array in (layer.weights, layer.scale, layer.bias, layer.constants)
    )
    return numbers + LAYER_BYTES * len(layers) + MEMBER_BYTES * len(members)


def ram_of(sizes: dict[str, int]) -> int:
    """Bytes of the static memory of agreestop.c and network.c, up to padding."""
    members, classes, widest = sizes["AG_MEMBERS"], sizes["AG_CLASSES"], sizes["AG_WIDEST"]
    frame = 4 * -(-sizes["AG_INPUTS"] // 32)
    session = 2 * members * classes + 2 * (6 + classes)
    network = 12 * members * sizes["AG_NEURONS"] + 2 * sizes["AG_SPIKES"]
    scratch = (4 + 2 * sizes["AG_INTEGER_WEIGHTS"]) * widest + 2 * 256 + 4
    return session + network + frame * (1 + sizes["AG_HISTORY"]) + scratch


def watch_ram_of(sizes: dict[str, int], window: int) -> int:
    """The same where watch.c takes the place of agreestop.c."""
    members, classes = sizes["AG_MEMBERS"], sizes["AG_CLASSES"]
    cells = members * classes
    ring = 4 * window * -(-cells // 32)
    scores = 16 * (members + classes)
    return ram_of(sizes) + ring + 2 * cells + scores + 56


def model_text(members: Members) -> str:
    """model.c"""
    parts = ['/* Written by agreestop export: the numbers of the network. */\n#include "model.h"\n']
    tables = []
    for member, layers in enumerate(members):
        entries = []
        for index, layer in enumerate(layers):
            arrays = {
                "weights": layer.weights,
                "scale": layer.scale,
                "bias": layer.bias,
                "constants": layer.constants,
            }
            end = f"{member}_{index}"
            parts += [
                c_array(f"{name}_{end}", array, "ag_weight" if name == "weights" else "float")
                for name, array in arrays.items()
            ]
            names = ", ".join(f"{name}_{end}" for name in arrays)
            entries.append(
                f"    {{{names}, {', '.join(str(layer.geometry[name]) for name in GEOMETRY)}}},\n"
            )
        parts.append(f"static const ag_layer layers_{member}[] = {{\n{''.join(entries)}}};\n")
        tables.append(f"    {{layers_{member}, {len(layers)}}},\n")
    return "\n".join(
        [*parts, f"const ag_member ag_members[AG_MEMBERS] = {{\n{''.join(tables)}}};\n"]
    )


def rule_text(rule: ExportedRule, promise: str, names: tuple[str, ...]) -> str:
    """rule_data.h, with the promise in words on top."""
    looks = len(rule.times)
    numbers = {name: str(index) for index, name in enumerate(POLICIES)}
    numbers |= {
        "AG_POLICY": rule.policy,
        "AG_LOOKS": str(looks),
        "AG_MAX_SET_SIZE": str(rule.max_set_size),
        "AG_EXPONENT": c_double(rule.exponent),
        "AG_TEMPERED": str(int(rule.temperatures is not None)),
        "AG_FIXED_TIME": str(int(rule.fixed_time)),
        "AG_FILL": str(int(rule.fill)),
        "AG_LOG_TRIM": c_double(rule.log_trim),
        "AG_FINAL": str(int(rule.final)),
        "AG_COLUMNS": str(rule.thresholds.shape[1]),
        "AG_THRESHOLD_FOR_EACH_LOOK": str(
            int(rule.blocks is None and len(rule.thresholds) == looks and looks > 1)
        ),
        "AG_GATED": str(int(rule.blocks is not None)),
        "AG_BLOCKS": str(len(rule.thresholds)),
        "AG_GATE_SLACK": c_double(rule.slack),
    }
    words = promise.replace("*/", "* /")
    parts = [f"/* Written by agreestop export: the numbers of the rule. Its promise: {words} */\n"]
    parts += [f"#define {name} {value}" for name, value in numbers.items()] + [""]
    parts += [
        c_array("ag_look_times", rule.times.astype(np.uint16), scope=""),
        c_array("ag_look_members", rule.members.astype(np.uint16), scope=""),
    ]
    if rule.policy != "AG_CONFIDENCE":
        parts.append(c_array("offsets", rule.offsets))
    parts.append(c_array("thresholds", rule.thresholds.astype(np.float64)))
    if rule.temperatures is not None:
        parts.append(c_array("temperatures", rule.temperatures))
    if rule.blocks is not None:
        parts.append(c_array("blocks", rule.blocks.astype(np.uint8)))
    parts.append(
        "const char *const ag_class_names[AG_CLASSES] = {\n"
        + ",\n".join(map(c_string, names))
        + "};\n"
    )
    return "\n".join(parts)


def c_string(text: str) -> str:
    r"""A string literal in ASCII; what C could take for something else is written as an octal
    number, such as \077 for a question mark.
    """
    return (
        '"'
        + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode())
        + '"'
    )


def c_array(name: str, array: NDArray[Any], kind: str = "", scope: str = "static ") -> str:
    """The definition of a constant array, one axis, in lines of at most 16 numbers."""
    lines = ",\n".join(_lines(array))
    return (
        f"{scope}const {kind or C_TYPES[array.dtype.name]} {name}[{array.size}] = {{\n{lines}}};\n"
    )


def _lines(array: NDArray[Any]) -> Iterator[str]:
    flat = array.ravel().tolist()
    for first in range(0, len(flat), 16):
        numbers = flat[first : first + 16]
        if array.dtype == np.float32:  # nine digits tell all float32 apart
            yield ", ".join(map("%.8ef".__mod__, numbers))
        elif array.dtype == np.float64:
            yield ", ".join(map(c_double, numbers))
        else:
            yield ", ".join(map(str, numbers))


def c_double(value: float) -> str:
    """A double that C reads without rounding."""
    return ("-" if value < 0 else "") + "INFINITY" if np.isinf(value) else float(value).hex()
