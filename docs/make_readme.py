"""Write the tables of pages in docs/ from results/ and from the library."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# members whose inputs all stop here have learned nothing, and their early decisions mean nothing
FIRST_STEP = 1 / 80
PRICE = 0.04  # dollars for an hour of a core, an assumption that docs/scale.md states
RESULTS = ROOT / "results"
RULES = (
    "p-variable merging",
    "confidence merging",
    "stop-aware, every step",
    "AgreeStop, every step",
)
SPEED = (
    ("decide-early", "batch of 256, every input stops at its decision", {"batch": 256}),
    ("decide-joining", "batch of 256, some members are asked only if needed", {"batch": 256}),
    ("decide-full", "batch of 256, every input runs to T", {"batch": 256}),
    ("train", "batch of 256", {"batch": 256, "form": "weights"}),
)
WORDS = {
    "decide-early": "decisions, stopping early",
    "decide-joining": "decisions, stopping early, members join",
    "decide-full": "decisions at T",
    "train": "training six members",
}


def read(path: str) -> list[dict[str, Any]]:
    """The records of a results file."""
    return json.loads((RESULTS / path).read_text())["records"]


def only(records: Sequence[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    """The one record that has these entries."""
    (found,) = (
        record
        for record in records
        if all(record.get(name) == value for name, value in wanted.items())
    )
    return found


def results_table() -> str:
    """Latency, coverage and set size of the paper's rules and of ours, on two data sets."""
    lines = [
        "| rule | simulated digits: stops at | coverage | set size | CIFAR-10: stops at | "
        "coverage | set size |",
        "|---|---|---|---|---|---|---|",
    ]
    digits, cifar = read("digits/metrics.json"), read("fig6/numbers.json")
    for label in RULES:
        ours = only(digits, ensemble="deep", label=label, K=6, target=0.9)
        short = {
            "p-variable merging": "p-variable merging (PM)",
            "confidence merging": "confidence merging (CM)",
        }.get(label, label)
        theirs = only(cifar, ensemble="deep", label=short, K=6, target=0.9, n=50, default=True)
        cells = [
            f"{record['latency']:.3f} T | {record['coverage']:.3f} | {record['set_size']:.2f}"
            for record in (ours, theirs)
        ]
        name = f"{label}, the paper's" if "merging" in label else label
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed_table() -> str:
    """How many times as fast as the fastest peer our engines are."""
    lines = ["| work | two CPU cores | one H200 |", "|---|---|---|"]
    machines = [read("bench/cpu.json"), read("bench/h200.json")]
    for work, note, wanted in SPEED:
        wanted = {"work": work, "inputs": "mnist-dvs-sim", "system": "agreestop", **wanted}
        found = [
            only(records, **wanted) if any(r["work"] == work for r in records) else None
            for records in machines
        ]
        cells = [
            "not measured"
            if one is None
            else f"{one['times_fastest_peer']:.1f} × {one['fastest_peer']}"
            for one in found
        ]
        lines.append(f"| {WORDS[work]} ({note}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def engines_table() -> str:
    """What else was measured: live steps on both machines, and the kernel of the neurons."""
    machines = {"event-driven": read("bench/cpu.json"), "fused": read("bench/h200.json")}
    lines = ["| measured | two CPU cores | one H200 |", "|---|---|---|"]
    for words, form in (
        ("a live step", "only"),
        ("a live step, with the rule", "and the rule, until it stops"),
    ):
        wanted = {"work": "stream-step", "inputs": "mnist-dvs-sim", "system": "agreestop"}
        found = (
            only(records, **wanted, form=f"{engine} engine {form}")
            for engine, records in machines.items()
        )
        cells = [f"{record['median']:.0f} µs" for record in found]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    for record in machines["fused"]:
        if record["work"] == "srm-kernel" and record["system"] == "agreestop":
            words = f"{record['form']} pass of the neurons' kernel, in the speed of a plain copy"
            lines.append(f"| {words} | | {record['times_fastest_peer']:.2f} |")
    return "\n".join(lines)


LIVE_ROWS = {
    "network": "a step of the network alone",
    "push": "a step with the rule",
    "open": "opening a session",
    "first": "its first step",
    "decide": "the step that decides",
    "steps": "all steps of an input, the network alone",
    "input": "the same with the rule, opened and decided",
    "batch": "steps a second of many inputs, each with one in a call",
}


def live_table() -> str:
    """Live inputs: this version, the one before and the fastest other library, with the ratio to
    the bare network.
    """
    content = json.loads((RESULTS / "bench" / "live.json").read_text())
    records = content["records"]
    names = list(dict.fromkeys(record["inputs"] for record in records))
    before = next((record["version"] for record in records if record["form"] == "before"), None)
    others = any(record["system"] != "agreestop" for record in records)
    heads = ["now", *([f"at {before}"] if before else []), *(["fastest library"] if others else [])]
    lines = [
        f"| | {' | '.join(f'{name}: {head}' for name in names for head in heads)} |",
        "|---" * (1 + len(heads) * len(names)) + "|",
    ]
    for work, words in LIVE_ROWS.items():
        cells = []
        for name in names:
            some = [
                record
                for record in records
                if (record["work"], record["inputs"]) == (f"live-{work}", name)
            ]
            peers = [record for record in some if record["system"] != "agreestop"]
            found = [
                one for form in ("this version", "before") for one in only_some(some, form)
            ] + sorted(peers, key=median_of)[:1]
            for one in found:
                bare = {"push": "network", "input": "steps"}.get(work)
                alone = [
                    r
                    for r in records
                    if bare
                    and (r["work"], r["inputs"], r["form"]) == (f"live-{bare}", name, one["form"])
                ]
                alone = [record for record in alone if record["system"] == one["system"]]
                times = f" ({one['median'] / alone[0]['median']:.1f} ×)" if alone else ""
                number = f"{one['median']:,.0f}" if work == "batch" else f"{one['median']:,.1f} µs"
                cells.append(f"{number}{times}")
            cells += [""] * (len(heads) - len(found))
        lines.append(f"| {words} | {' | '.join(cells)} |")
    busy = content["other_cores_busy"]
    cores = content["machine"]["cores"]
    lines += [
        "",
        f"Other work kept {busy['before']:.1f} of {cores} cores busy before the run and "
        f"{busy['after']:.1f} after it.",
    ]
    missing = content["missing"].removeprefix("left out: ")
    return "\n".join(lines + ([f"Not measured: {missing}"] if missing else []))


def only_some(records: Sequence[dict[str, Any]], form: str) -> list[dict[str, Any]]:
    """Our records of one version."""
    return [
        record for record in records if record["system"] == "agreestop" and record["form"] == form
    ]


def median_of(record: dict[str, Any]) -> float:
    """The median of a record."""
    return float(record["median"])


def floor_text() -> str:
    """What a decision at T on inputs that all spike costs at least on a GPU, from its operations
    and the measured peak of a product.
    """
    plan = json.loads((RESULTS / "bench" / "h200.json").read_text())["plan"]
    cells, K, T = math.prod(plan["shape"]), plan["members"], plan["steps"]
    operations = 2 * T * K * plan["hidden"] * (cells + plan["classes"])
    peak = max(
        float(found[1])
        for r in deep_on_gpu()
        if (found := re.search(r"peak of (\d+) TFLOP/s", r["form"]))
    )
    roof = peak * 1e12 / (2 * operations)
    records = [
        r
        for r in read("bench/h200.json")
        if (r["work"], r["inputs"], r.get("batch")) == ("decide-full", "bernoulli-3%", 512)
    ]
    ours, peers = (
        only(records, system="agreestop")["median"],
        max(r["median"] for r in records if r["system"] != "agreestop"),
    )
    return (
        f"The floor: a decision at T takes {operations / 1e9:.2f} GFLOP, and "
        f"{2 * operations / 1e9:.2f} GFLOP in two parts of float16. "
        f"At the {peak:.0f} TFLOP/s that a large product reached, these are {roof:,.0f} decisions "
        f"a second, {roof / peers:.1f} times the "
        f"fastest peer, which multiplies in float32 at {peers * operations / 1e12:.0f} TFLOP/s. "
        "Random inputs, nearly all of which spike "
        f"in a tile, are at {ours / roof:.0%} of this roof; inputs that do not spike raise it."
    )


def deep_on_gpu() -> list[dict[str, Any]]:
    """The records of deep networks; the ResNet-18 was measured by itself since."""
    newer = read("bench/h200-resnet.json")
    known = {record["inputs"] for record in newer}
    older = read("bench/h200-deep.json")
    return [record for record in older if record["inputs"] not in known] + newer


def deep_table() -> str:
    """Deep networks on a GPU: how many times as fast as the fastest peer, and how near to the
    convolutions alone.
    """
    records = [record for record in deep_on_gpu() if record.get("latency", 1) > FIRST_STEP]
    roofs = {
        record["inputs"]: record["median"]
        for record in records
        if record["form"] == "the same convolutions alone"
    }
    return deep_rows(
        records,
        (
            "of the speed of its convolutions alone",
            lambda full: f"{100 * full['median'] / roofs[full['inputs']]:.0f} %",
        ),
    )


def deep_cpu_table() -> str:
    """Networks with convolutions on a CPU: how many times as fast as the fastest peer."""
    return deep_rows(read("bench/cpu-deep.json"))


def deep_rows(records: Any, share: tuple[str, Callable[[Any], str]] | None = None) -> str:
    """A row for each network: times the fastest peer, and where early decisions stop; where members
    join also times one member of a peer.

    share: the heading and the contents of a column about decisions at T
    """
    columns = [
        "decisions at T",
        *([share[0]] if share else []),
        "early decisions",
        "stops at",
        "members join",
        "against one member",
        "stops at",
        "training",
    ]
    lines = [f"| network | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for inputs in dict.fromkeys(record["inputs"] for record in records):
        found = {
            record["work"]: record
            for record in records
            if record["inputs"] == inputs and record["system"] == "agreestop"
        }
        cells = [inputs]
        for work in ("decide-full", "decide-early", "decide-joining", "train"):
            one = found.get(work)
            cells.append("" if one is None else f"{one['times_fastest_peer']:.1f} ×")
            if work == "decide-full" and share:
                cells.append(share[1](one))
            if work == "decide-joining":
                single = [
                    r
                    for r in records
                    if r["inputs"] == inputs.replace("K = 6", "K = 1")
                    and r["work"] == "decide-full"
                ]
                fastest = max(
                    (r["median"] for r in single if r["system"] != "agreestop"), default=None
                )
                cells.append(
                    "" if one is None or fastest is None else f"{one['median'] / fastest:.1f} ×"
                )
            if work in ("decide-early", "decide-joining"):
                cells.append("" if one is None else f"{one['latency']:.2f} T")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def nir_table() -> str:
    """The speed of a published network on our engine and in the libraries."""
    lines = ["| | decisions a second | × the fastest library |", "|---|---|---|"]
    for record in read("bench/nir.json"):
        times = f"{record['times_fastest_peer']:.1f}" if "times_fastest_peer" in record else ""
        lines.append(
            f"| {record['system']}, {record['form']} | {record['median']:,.0f} | {times} |"
        )
    return "\n".join(lines)


def stepping_table() -> str:
    """What stepping a module costs beside a bare loop, and what stopping saves."""
    lines = [
        "| module, inputs together | time to T, in that of the bare loop | steps computed with a "
        "rule | time with it, in that to T |"
    ]
    lines.append("|---|---|---|---|")
    for one in json.loads((RESULTS / "bench" / "adapters.json").read_text())["results"]:
        cells = (
            f"{one['times_bare_loop']:.2f} | {one['computed']:.0%} | "
            f"{one['decided_times_to_T']:.0%}"
        )
        lines.append(f"| {one['module']}, {one['batch']} | {cells} |")
    return "\n".join(lines)


def events_table() -> str:
    """Memory and time of a data set as events and as a dense array."""
    words = {
        ("file", "bytes"): "its file",
        ("load", "seconds"): "time to load it",
        ("load", "bytes"): "memory that loading takes",
        ("pass", "bytes"): "memory of loading it and reading all inputs once, 64 at a time",
        ("score", "seconds"): "time of the event-driven engine on 256 inputs",
    }
    lines = ["| | dense | events | |", "|---|---|---|---|"]
    for (work, unit), name in words.items():
        record = only(read("bench/events.json"), work=work, unit=unit)
        cells = [
            f"{record[form] / 1e6:,.0f} MB" if unit == "bytes" else f"{record[form]:.2f} s"
            for form in ("dense", "events")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {record['ratio']:.1f} × |")
    return "\n".join(lines)


def fuzz_table() -> str:
    """What became of damaged files in the last long run, by format."""
    path = RESULTS / "reliability.json"
    if not path.is_file():
        return "There is no long run yet."
    run = json.loads(path.read_text())
    outcomes = ("same", "refused", "other", "failed")
    lines = [
        "| format | same result | refused in a sentence | another valid file | anything else |",
        "|---|---|---|---|---|",
    ]
    for name, counts in (*sorted(run["formats"].items()), ("all", run)):
        lines.append(f"| {name} | {' | '.join(f'{counts[outcome]:,}' for outcome in outcomes)} |")
    return "\n".join(lines)


def settings(records: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """The records of each setting of results/promises/numbers.json, by rule."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for record in records:
        if record["target"] != 0.99:
            key = tuple(
                record[name] for name in ("data", "n", "ensemble", "max_set_size", "target")
            )
            found.setdefault(key, {})[record["rule"]] = record
    return found


def reach(values: Sequence[float]) -> str:
    """The least and the largest of some numbers."""
    return f"{min(values):.2f} to {max(values):.2f}"


def gates_table() -> str:
    """What a gate, one time for all inputs and the published rule keep and cost, over members, I =
    1 and 3, and two targets.
    """
    lines = [
        "| | blocks below the target: plain | with a gate | latency with a gate / plain | one time "
        "for all / plain | accumulated / gate "
        "| draws in which accumulated never stops |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, dict[str, Any]]]] = {}
    for (data, n, *_), rules in settings(read("promises/numbers.json")).items():
        groups.setdefault((data, n), []).append(rules)
    for (data, n), found in groups.items():
        cells = []
        for rule in ("AgreeStop", "AgreeStop with a gate"):
            blocks = [
                (block, rules[rule]["target"]) for rules in found for block in rules[rule]["blocks"]
            ]
            cells.append(
                f"{sum(block['high'] < target for block, target in blocks)} of {len(blocks)}"
            )
        plain, gate, fixed = (
            [rules[name]["latency"] for rules in found]
            for name in ("AgreeStop", "AgreeStop with a gate", "one time for all inputs")
        )
        ways = [
            [rule for name, rule in rules.items() if name.startswith("accumulated")]
            for rules in found
        ]
        best = [min(two, key=lambda rule: rule["latency"]) for two in ways]
        cells += [
            reach([a / b for a, b in zip(above, below, strict=True)])
            for above, below in ((gate, plain), (fixed, plain))
        ]
        cells.append(
            reach([one["latency"] / latency for one, latency in zip(best, gate, strict=True)])
        )
        cells.append(
            " to ".join(f"{bound(one['vacuous'] for one in best):.0%}" for bound in (min, max))
        )
        lines.append(f"| {data}, n = {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def final_table() -> str:
    """Accuracy and latency of rules that were calibrated without labels."""
    lines = ["| | n | latency / T | accuracy | at T |", "|---|---|---|---|---|"]
    for one in read("promises/numbers.json"):
        if one["rule"] == "AgreeStop without labels":
            figures = f"{one['latency']:.3f} | {one['accuracy']:.3f} | {one['accuracy_T']:.3f}"
            lines.append(f"| {one['data']}, {one['ensemble']} | {one['n']} | {figures} |")
    return "\n".join(lines)


def size_table() -> str:
    """Latency and set size of a rule tuned with prices on size."""
    lines = [
        "| cifar10, deep, I = 1, target 0.99, n = 200 | latency / T | classes in an answer |",
        "|---|---|---|",
    ]
    for one in read("promises/numbers.json"):
        if one["rule"] == "tuned AgreeStop":
            name = "not tuned" if one["price"] is None else f"tuned, price {one['price']:g}"
            lines.append(f"| {name} | {one['latency']:.3f} | {one['set_size']:.2f} |")
    return "\n".join(lines)


def work_table() -> str:
    """Work and latency of one member, and of the schedule for a price of 1, as shares of those of
    all members.
    """
    lines = [
        "| | all members: member-steps | schedule for a price of 1: work | latency | one member: "
        "work | latency |"
    ]
    lines.append("|---|---|---|---|---|---|")
    records = read("promises/front.json")
    for key in dict.fromkeys(
        (one["data"], one["ensemble"], one["max_set_size"], one["n"]) for one in records
    ):
        mine = [
            one
            for one in records
            if key == (one["data"], one["ensemble"], one["max_set_size"], one["n"])
        ]
        everybody, alone = only(mine, name="all members"), only(mine, name="one member")
        (joined,) = (one for one in mine if 1.0 in one["prices"])
        low, high = everybody["work_interval"]
        cells = [f"{everybody['work']:.1f} [{low:.1f}, {high:.1f}]"]
        for one in (joined, alone):
            cells += [f"{one['work_share']:.0%}", f"{one['ratio']:.2f} ×"]
        lines.append(f"| {key[0]}, {key[1]}, I = {key[2]}, n = {key[3]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def load_table() -> str:
    """What the server reaches under load, and the same work without a network."""
    found = json.loads((RESULTS / "serve" / "load.json").read_text())
    rates, direct = found["session_steps_a_second"], found["without_network_session_steps_a_second"]
    older = found["previous"]
    lines = [
        f"| | session-steps a second | at {older['version']} | push to decision, p50 | p99 | "
        "computing | steps a tick |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {
        "steps_1": "one step a message",
        "steps_8": "eight steps a message",
        "single": "one session alone, one step a message",
    }
    for name, words in names.items():
        p50, p99 = found["push_to_decision_ms"][name]
        share, steps = found["computing_share"].get(name), found["steps_a_tick"].get(name)
        tick = "| | |" if share is None else f"| {share:.0%} | {steps:.0f} |"
        before = times_before(rates[name], older["session_steps_a_second"][name])
        lines.append(f"| {words} | {before} | {p50:.1f} ms | {p99:.1f} ms {tick}")
    same = {
        "steps_1": "a step of every session in a call",
        "steps_8": "eight steps of every session in a call",
        "live_session": "one `LiveSession` after the other",
    }
    for name, words in same.items():
        before = older["without_network_session_steps_a_second"][name]
        lines.append(f"| no network, {words} | {times_before(direct[name], before)} | | | | |")
    load, count = found["machine"]["load"], found["machine"]["cores"]
    words = (
        f"{found['sessions']:,} sessions at once over {found['connections']} connections, "
        f"{found['decisions']:,} decisions in all"
    )
    lines += [
        "",
        f"{words}: {found['lost']} lost, {found['wrong']} wrong. {count} cores, whose load by all "
        f"programs was {load:.1f} at the end. In brackets: times the older version, whose server "
        "and client took turns with these.",
    ]
    lines += [
        "([Numbers](../results/serve/load.json), `python -m benchmarks serve`.)",
        "",
        soak_words(),
    ]
    return "\n".join(lines)


def times_before(rate: float, before: float) -> str:
    """Two cells: a rate with its ratio to the older version, and the rate of that version."""
    return f"{rate:,.0f} ({rate / before:.1f} ×) | {before:,.0f}"


def soak_words() -> str:
    """How the memory of the server changed while sessions came and went."""
    found = json.loads((RESULTS / "serve" / "soak.json").read_text())
    readings = found["readings"]
    chosen = readings[len(readings) // 5 - 1], readings[-1]  # the first fifth is the warm-up
    sizes = [
        f"{reading['bytes'] / 1e6:.0f} MB after {reading['seconds'] / 60:.0f} minutes"
        for reading in chosen
    ]
    words = (
        f"While {found['opened']:,} sessions came and went, the memory of the server was "
        f"{sizes[0]} and {sizes[1]}. The server refused {found['errors']:,} messages, which were "
        "wrong on purpose"
    )
    return f"{words}. ([Numbers](../results/serve/soak.json), `python -m benchmarks soak`.)"


def attack_table() -> str:
    """What one hostile client of each kind does to the pushes of an honest one."""
    found = json.loads((RESULTS / "serve" / "attacks.json").read_text())
    lines = [
        "| one attacker with | honest push, p95, alone | attacked | ratio | connecting | memory | "
        "log |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found["attacks"]:
        size = (
            f"{one['connect_ms']['attacked']:.0f} ms | {one['grown_bytes'] / 1e6:+.1f} MB | "
            f"{one['log_bytes'] / 1000:.1f} kB"
        )
        times = (
            f"{one['p95_ms']['alone']:.1f} ms | {one['p95_ms']['attacked']:.1f} ms | "
            f"{one['ratio']:.1f}"
        )
        lines.append(f"| {one['attack']} | {times} | {size} |")
    load, count = found["machine"]["load"], found["machine"]["cores"]
    words = (
        f"Each attack lasts {found['seconds']:g} seconds. {count} cores, whose load by all "
        f"programs was {load:.1f} at the end."
    )
    lines += [
        "",
        f"{words} ([Numbers](../results/serve/attacks.json), `python -m benchmarks attacks`.)",
    ]
    return "\n".join(lines)


def alarm_table() -> str:
    """How many labels an alarm takes at α' = 0.1 and δ = 0.05, from the start and after many
    decisions that missed less.
    """
    import agreestop as ag

    rates = (0.12, 0.15, 0.2, 0.3, 0.5)
    monitor = ag.DriftMonitor(
        ag.AgreeStop("0.9", range(1, 6), 1, delta="0.1").calibrate(
            ag.simulate_scores(200, steps=5, K=2, C=3)
        )
    )
    lines = [
        f"| share of misses | {' | '.join(map(str, rates))} |",
        "|---" * (len(rates) + 1) + "|",
    ]
    lines.append(
        "| labels, from the start | "
        f"{' | '.join(f'{monitor.labels_to_alarm(rate):,.0f}' for rate in rates)} |"
    )
    for number in range(3000):
        monitor.update(ag.Decision(5, 4, (0,)), int(number % 12 == 0))
    later = " | ".join(f"{monitor.labels_to_alarm(rate):,.0f}" for rate in rates)
    return "\n".join(
        [*lines, f"| labels, after 3,000 decisions of which every twelfth missed | {later} |"]
    )


def streams_table() -> str:
    """How often a monitor raised an alarm over streams side by side, in the order of opening and in
    that of ending.
    """
    found = json.loads((RESULTS / "drift.json").read_text())
    lines = [
        "| | inputs | misses | inputs, as they end | misses, as they end |",
        "|---|---|---|---|---|",
    ]
    for one in found["results"]:
        if one["drift"] is None:
            shares = (
                one[f"{order}_{kind}"] / one["runs"]
                for order in ("opening", "ending")
                for kind in ("inputs", "misses")
            )
            lines.append(f"| {one['world']} | {' | '.join(f'{share:.2f}' for share in shares)} |")
    count, inputs = found["results"][0]["runs"], found["results"][0]["inputs"]
    changed = next(one for one in found["results"] if one["drift"] is not None)
    later = {
        kind: changed[f"opening_{kind}_median"] - changed["drift"] for kind in ("inputs", "misses")
    }
    alarms = {kind: changed[f"opening_{kind}"] for kind in ("inputs", "misses")}
    words = (
        f"Share of {count} runs of {inputs:,} inputs without drift in which there was an alarm; "
        f"stated are at most {found['alarm']:g} "
        f"for inputs and {found['alarm'] + found['delta']:g} for misses. Where the inputs change "
        f"at input {changed['drift']:,} of 300 "
        f"streams side by side, the order of opening finds it in {alarms['inputs']} and "
        f"{alarms['misses']} of {changed['runs']} runs, "
        f"after a median of {later['inputs']:,.0f} inputs and {later['misses']:,.0f} labels. "
        "([Numbers](../results/drift.json), `python -m benchmarks drift`.)"
    )
    return "\n".join([*lines, "", words])


def level_table() -> str:
    """α' of rules without delta, at a target of 0.9 and δ = 0.05."""
    from fractions import Fraction

    from agreestop.common.levels import largest_miss_rate, quantile_rank

    counts, delta, target = (50, 100, 200, 1000, 5000), Fraction(1, 20), Fraction(9, 10)
    levels = [largest_miss_rate(n, quantile_rank(n, target, None), delta) for n in counts]
    lines = [
        f"| calibration examples | {' | '.join(f'{n:,}' for n in counts)} |",
        "|---" * (len(counts) + 1) + "|",
    ]
    return "\n".join([*lines, f"| α' | {' | '.join(f'{level:.3f}' for level in levels)} |"])


def scaling_table() -> str:
    """Decisions a second of one process, one actor and two actors, and what one recording takes."""
    found = json.loads((RESULTS / "cluster" / "scaling.json").read_text())
    rate, sizes, machine = found["decisions_a_second"], found["bytes_in"], found["machine"]
    lines = [
        "Six members of 256 neurons, digits in front of a simulated event camera, "
        f"{found['events_a_recording']:.0f} events in 80 steps, "
        f"target 0.9, stopping after {found['mean_stop']:.1f} steps on average; {machine['cores']} "
        "cores, the best of "
        f"{found['rounds']} rounds in turn, while the machine had a load of {machine['load']:.1f} "
        "with other work in it. "
        f"Decisions were the same as on one machine: {'yes' if found['same_decisions'] else 'no'}. "
        "([Numbers](../results/cluster/scaling.json), `make cluster`.)",
        "",
        "| | decisions a second | of one actor |",
        "|---|---|---|",
    ]
    for words, name in (
        ("one process, one thread, without Ray", "process"),
        ("one actor", "one"),
        ("two actors", "two"),
    ):
        lines.append(f"| {words} | {rate[name]:,.0f} | {rate[name] / rate['one']:.2f} |")
    lines += ["", "| piece | |", "|---|---|"]
    lines.append(
        f"| bytes in, a recording | {sizes['parquet']:,.0f} in Parquet, {sizes['npz']:,.0f} in an "
        "events file |"
    )
    lines.append(f"| bytes out, a recording | {found['bytes_out']:,.0f} |")
    return "\n".join([*lines, f"| start of a worker | {found['start_seconds']:.0f} s |"])


def billion_table() -> str:
    """What a billion recordings take, from the measured pieces."""
    found, n = json.loads((RESULTS / "cluster" / "scaling.json").read_text()), 10**9
    rate, size = found["decisions_a_second"]["two"] / 2, found["bytes_in"]["parquet"]
    lines = ["| | 1 core | 256 cores | 2,048 cores |", "|---|---|---|---|"]
    counts = (1, 256, 2048)  # cores
    days = [n / rate / count / 86400 for count in counts]
    lines.append(
        f"| decisions a second | {' | '.join(f'{rate * count:,.0f}' for count in counts)} |"
    )
    times = " | ".join(
        f"{one:,.1f} days" if one > 2 else f"{24 * 60 * one:,.0f} minutes" for one in days
    )
    lines.append(f"| time | {times} |")
    lines.append(
        "| bytes read a second | "
        f"{' | '.join(f'{rate * count * size / 1e6:,.1f} MB' for count in counts)} |"
    )
    lines.append(f"| price | {' | '.join([f'{n / rate / 3600 * PRICE:,.0f} $'] * 3)} |")
    moved = f"{n * size / 1e12:,.2f} TB, {n * found['bytes_out'] / 1e9:,.0f} GB"
    lines.append(f"| read, written | {' | '.join([moved] * 3)} |")
    return "\n".join(lines)


def fill(text: str, name: str, table: Callable[[], str]) -> str:
    """The text with the table between its two comments."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the page must hold {begin} and {end} once.")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table()}\n{end}", text, flags=re.DOTALL)


def guide(text: str) -> str:
    """docs/guide.md with its table."""
    return fill(text, "speed", speed_table)


def paper(text: str) -> str:
    """docs/paper.md with its table."""
    return fill(text, "results", results_table)


def c_table() -> str:
    """The exported C code: memory, code, time of a step beside that of the engine, and equal
    decisions.
    """
    lines = [
        "| hidden × members | weights | flash | RAM | code | a step in C | engine and rule | "
        "engine | in a batch | equal decisions |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for one in read("bench/c.json"):
        name = f"{'-'.join(map(str, one['hidden']))} × {one['members']}"
        sizes = " | ".join(f"{one[size] / 1024:.0f} KiB" for size in ("flash", "ram", "code"))
        times = " | ".join(
            f"{one[step]:.1f} µs"
            for step in ("c_step", "live_step", "live_step_without_rule", "batch_step")
        )
        lines.append(
            f"| {name} | {one['weights']} | {sizes} | {times} | {one['equal']} of {one['inputs']} |"
        )
    return "\n".join(lines)


def microcontroller(text: str) -> str:
    """docs/microcontroller.md with its tables."""
    return fill(fill(text, "wake-word", wake_word_in_c), "sizes", c_table)


def reliability(text: str) -> str:
    """docs/reliability-tests.md with its table."""
    return fill(text, "fuzz", fuzz_table)


def engines(text: str) -> str:
    """docs/engines.md with its table."""
    return fill(text, "events", events_table)


def speed(text: str) -> str:
    """docs/speed.md with its tables."""
    tables = {
        "live": live_table,
        "speed": engines_table,
        "floor": floor_text,
        "deep": deep_table,
        "deep-cpu": deep_cpu_table,
    }
    for name, table in tables.items():
        text = fill(text, name, table)
    return text


def nir(text: str) -> str:
    """docs/nir.md with its table."""
    return fill(text, "speed", nir_table)


def adapters(text: str) -> str:
    """docs/adapters.md with its table."""
    return fill(text, "stepping", stepping_table)


def promises(text: str) -> str:
    """docs/promises-measured.md with its tables."""
    for name, table in (
        ("gates", gates_table),
        ("final", final_table),
        ("size", size_table),
        ("work", work_table),
    ):
        text = fill(text, name, table)
    return text


def drift(text: str) -> str:
    """docs/drift.md with its tables."""
    for name, table in (("level", level_table), ("alarm", alarm_table), ("streams", streams_table)):
        text = fill(text, name, table)
    return text


def study_table(name: str) -> str:
    """False alarms and events found by each way to a threshold, and how early the class rule behind
    the alarms decides.
    """
    record = json.loads((RESULTS / f"{name}.json").read_text())
    ways = {
        "spotter": "`Spotter`, people as units",
        "training": "threshold from the recordings of training",
        "fixed 0.5": "a confidence of 0.5",
        "Bonferroni": "conformal p-value of every step, Bonferroni over a recording",
    }
    lines = [
        "| threshold | false alarms a recording | kept | false alarms an hour | events found | "
        "mean delay |",
        "|---|---|---|---|---|---|",
    ]
    for way, words in ways.items():
        one = record["methods"][way]
        figures = (
            f"{one['capped']:.3f} ± {one['capped_se']:.3f} | "
            f"{'yes' if one['kept_on_average'] else 'no'}"
        )
        rest = f"{one['per_hour']:.1f} | {one['found']:.1%} | {one['delay_seconds']:.2f} s"
        lines.append(f"| {words} | {figures} | {rest} |")
    own = record["named"]
    promise = (
        f"*Promised: {record['promised']:g} false alarms a recording on average, at most "
        f"{record['cap']} counted."
    )
    means = (
        f"Means over {record['draws']} draws of the people; ± is one standard error, as if "
        "draws were independent."
    )
    hours = (
        f"{record['recordings']} recordings of people that training never saw, "
        f"{record['hours']:.1f} hours."
    )
    found = f"Found: an alarm less than {record['within_seconds']:g} s after the event's end."
    rule = (
        f"The class rule promises {record['rule_target']:g}; its answers hold the class in "
        f"{own['coverage']:.1%} of the windows, with "
        f"{own['set_size']:.2f} classes on average, after {own['seconds']:.2f} s of "
        f"{own['seconds_at_end']:.1f} s.*"
    )
    return "\n".join([*lines, "", " ".join([promise, means, hours, found, rule])])


def watch_table() -> str:
    """Time and memory of a step over a long stream, in its first and in its last tenth."""
    record = json.loads((RESULTS / "watch.json").read_text())
    lines = [
        "| what | steps | a step in the first tenth | in the last tenth | memory grown | "
        "detections |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in record["watched"].items():
        first, last = one["parts"][0], one["parts"][-1]
        grown = last["peak_resident_kib"] - first["peak_resident_kib"]
        times = f"{first['microseconds_a_step']:.0f} µs | {last['microseconds_a_step']:.0f} µs"
        lines.append(
            f"| {name} | {one['steps']:,} | {times} | {grown:,} KiB | {one['detections']:,} |"
        )
    equal = ", which found the same at every step" if record["watched"]["C"]["equal"] else ""
    return "\n".join(
        [
            *lines,
            "",
            f"*{record['members']} members of {record['hidden']} neurons with int8 weights, their "
            f"C code{equal}, graphs of NIR, and a "
            "torch module. Processor time of a call from Python; memory of the process, grown "
            "after the first tenth "
            "(`python -m benchmarks watch`).*",
        ]
    )


def skips_table() -> str:
    """Naming after the wake word: how much of the word the rule skips, on the speakers that chose
    it.
    """
    record = json.loads((RESULTS / "wake-word.json").read_text())
    lines = ["| the rule skips | names the digit | says the wake word itself |", "|---|---|---|"]
    for one in record["skips"]:
        chosen = " (chosen)" if one["skip"] == record["skip"] else ""
        lines.append(f"| {10 * one['skip']} ms{chosen} | {one['right']:.1%} | {one['word']:.1%} |")
    clips, speakers = record["clips_right"], record["speakers"]
    windows = f"in {record['skips'][0]['windows']} windows of {speakers['tuning']} speakers"
    end = f"{record['named']['seconds_at_end']:.1f} s after a detection"
    note = (
        f"*Most probable class {end}, {windows} that neither trained the members nor calibrated "
        "anything. Of single digits, from their beginning on, the members name "
        f"{clips['tuning']:.1%} for these speakers and "
        f"{clips['training']:.1%} for those who trained them.*"
    )
    return "\n".join([*lines, "", note])


def wake_word_in_c() -> str:
    """The wake word in C: its size, and what was compared."""
    record = json.loads((RESULTS / "wake-word.json").read_text())
    one = record["c"]
    equal = "all equal to Python's" if one["equal"] else "**not** equal to Python's"
    kib = {name: one[name] / 1024 for name in ("flash", "flash_of_model", "ram")}
    sizes = (
        f"code and all numbers take {kib['flash']:.0f} KiB, of which "
        f"{kib['flash_of_model']:.0f} KiB are the network"
    )
    found = f"{one['detections']} detections and {one['decisions']} decisions, {equal}"
    return (
        "The whole wake word of [spotting-measured.md](spotting-measured.md#a-wake-word), "
        "spotter and rule: "
        f"with {one['weights']} weights, {sizes}, and "
        f"memory {kib['ram']:.1f} KiB (compiled with -Os for x86-64). On {one['streams']} "
        f"recordings of new speakers, {one['steps']:,} steps, it made {found}; a step took "
        f"{one['microseconds_a_step']:.1f} µs on a desktop processor "
        "([wake-word.json](../results/wake-word.json))."
    )


def spotting(text: str) -> str:
    """docs/spotting.md with its table."""
    return fill(text, "watch", watch_table)


def spotting_measured(text: str) -> str:
    """docs/spotting-measured.md with its tables."""
    text = fill(text, "skips", skips_table)
    for name in ("wake-word", "transitions"):
        text = fill(text, name, partial(study_table, name))
    return text


def scale(text: str) -> str:
    """docs/scale.md with its tables."""
    return fill(fill(text, "scaling", scaling_table), "billion", billion_table)


def serve(text: str) -> str:
    """docs/serve-load.md with its tables."""
    return fill(fill(text, "load", load_table), "attacks", attack_table)


def answers_table() -> str:
    """Open answers: samples, agreement and accuracy of ours and of published rules, with intervals
    for the draw of the questions.
    """
    lines = ["| rule | samples | agreement | right | tokens |", "|---|---|---|---|---|"]
    for one in read("answers.json"):
        if "number" in one or "answered" in one:
            continue
        name = one["rule"] if one["target"] is None else f"{one['rule']}, target {one['target']}"
        samples, agreement = (one[key] for key in ("samples", "agreement"))
        spread = f"{samples['mean']:.2f} [{samples['low']:.2f}, {samples['high']:.2f}]"
        agreed = (
            f"{agreement['mean']:.3f} [{agreement['low']:.3f}, {min(agreement['high'], 1):.3f}]"
        )
        lines.append(
            f"| {name} | {spread} | {agreed} | {one['accuracy']['mean']:.3f} | "
            f"{one['cost']['mean']:.0f} |"
        )
    return "\n".join(lines)


def refusals_table() -> str:
    """Open answers with right answers as labels, and abstention."""
    lines = ["| at most wrong | samples | answered | wrong |", "|---|---|---|---|"]
    for one in read("answers.json"):
        if "answered" in one:
            means = " | ".join(
                f"{one[key]['mean']:.{digits}f}"
                for key, digits in (("samples", 1), ("answered", 3), ("wrong", 3))
            )
            lines.append(f"| {1 - one['target']:.2f} | {means} |")
    return "\n".join(lines)


def language_models(text: str) -> str:
    """docs/language-models.md with its tables."""
    return fill(fill(text, "answers", answers_table), "refusals", refusals_table)


def checkpoints_table() -> str:
    """Latency of few and many checkpoints, with raw and with fitted risks, and how often
    `calibrate` notes that many stop later.
    """
    content = json.loads((RESULTS / "checkpoints.json").read_text())
    records = content["records"]
    counts = (4, 8, 20, None)
    heads = [
        f"{risk}: {count or 'every step'}" for risk in ("raw", "temperatures") for count in counts
    ]
    lines = [f"| stream | {' | '.join(heads)} | noted |", "|---" * (len(heads) + 2) + "|"]
    for name in dict.fromkeys(one["data"] for one in records):
        own = [one for one in records if one["data"] == name]
        every = max(one["checkpoints"] for one in own)
        cells = []
        for risk in ("raw", "temperatures"):
            chosen = [only(own, risk=risk, checkpoints=count or every) for count in counts]
            least = min(one["latency"] for one in chosen)
            cells += [
                f"**{one['latency']:.3f}**" if one["latency"] == least else f"{one['latency']:.3f}"
                for one in chosen
            ]
        noted = only(own, risk="raw", checkpoints=every)["noted"]
        lines.append(f"| {name} | {' | '.join(cells)} | {noted:.0%} |")
    source = f"[Numbers](../results/checkpoints.json), `{content['command']}`"
    return "\n".join([*lines, "", f"{content['repeats']} calibration draws. ({source}.)"])


def shapes(text: str) -> str:
    """The page with the table of few and many checkpoints."""
    return fill(text, "checkpoints", checkpoints_table)


def mistakes(text: str) -> str:
    """docs/mistakes.md with what each block of code prints below it."""

    def with_output(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(found[1], {})
        return f"```python\n{found[1]}```\n\n```text\n{printed.getvalue()}```\n"

    return re.sub(
        r"```python\n(.*?)```\n(?:\n```text\n.*?```\n)?", with_output, text, flags=re.DOTALL
    )


PAGES: dict[str, Callable[[str], str]] = {
    "docs/guide.md": guide,
    "docs/paper.md": paper,
    "docs/adapters.md": adapters,
    "docs/engines.md": engines,
    "docs/speed.md": speed,
}
PAGES |= {
    "docs/reliability-tests.md": reliability,
    "docs/promises-measured.md": promises,
    "docs/drift.md": drift,
    "docs/scale.md": scale,
}
PAGES |= {
    "docs/microcontroller.md": microcontroller,
    "docs/serve-load.md": serve,
    "docs/nir.md": nir,
    "docs/language-models.md": language_models,
    "docs/spotting.md": spotting,
    "docs/spotting-measured.md": spotting_measured,
    "docs/mistakes.md": mistakes,
    "docs/shapes.md": shapes,
}


def main() -> None:
    for page, write in PAGES.items():
        (ROOT / page).write_text(write((ROOT / page).read_text()))


if __name__ == "__main__":
    main()
