"""What the server counts, for its page and in Prometheus' text format."""

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import accumulate
from time import time as wall_time
from typing import Any

import numpy as np

from agreestop.common.estimates import Estimate
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import Detection

from .offers import Offer
from .watch import Watch

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets of the latency, in seconds; one more bucket has no bound."""
RECENT = 1000  # decisions from which the page takes its quantiles
STRIP = 50  # answers that the page shows
LONGEST_WORDS = 40  # characters of an answer there
BINS = 20  # of the stopping times
WINDOW, POINTS = 100, 60  # labels in a window of coverage, and windows that are shown
ADVICE = {
    "misses": (
        "Do not rely on the promise until this is solved. Calibrate the rule again on labelled "
        "inputs that came since (DriftMonitor.recalibrate), or let an AdaptiveRule follow the "
        "labels. Then start the server with the new rule and a new --monitor file."
    ),
    "inputs": (
        "Look for what changed before the inputs reach the server: the sensor, its settings, or "
        "what it watches. Label some recent inputs, which shows whether the answers still hold. "
        "Then calibrate again on such inputs, and start with a new --monitor file."
    ),
}
"""What to do after an alarm of each kind."""


@dataclass(eq=False)
class Metrics:
    """Counts since the start.

    latency: seconds from the arrival of a push to its decision, by bucket; recent: those of the
    last decisions. recent_times: when they fell in their streams. strip: the last answers for the
    page, of `noted` in all. failures: how often background work failed, by its name; it went on
    each time
    """

    opened: int = 0
    messages: int = 0
    steps: int = 0
    decisions: int = 0
    detections: int = 0
    errors: int = 0
    idle: int = 0
    slow: int = 0
    ticks: int = 0
    tick_seconds: float = 0.0
    stop_times: float = 0.0
    latency_sum: float = 0.0
    latency: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent_times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    strip: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=STRIP))
    noted: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def decided(self, seconds: float, time: float) -> None:
        """Count a decision at this time of its stream, and the seconds that it took."""
        self.decisions += 1
        self.stop_times += time
        self.latency_sum += seconds
        self.latency[bisect_left(BOUNDS, seconds)] += 1
        self.recent.append(seconds)
        self.recent_times.append(time)

    def answered(self, key: str, decision: Decision) -> None:
        """Note a decision for the strip of the page."""
        self._note(decision, time=decision.time, words=_in_words(decision), key=key)

    def found(self, found: Detection | Decision) -> None:
        """Count what was found in a stream without an end."""
        if isinstance(found, Decision):
            self.decisions += 1
            self.stop_times += found.time
            self.recent_times.append(found.time)
            self._note(found, time=found.time, words=_in_words(found))
            return
        self.detections += 1
        self._note(found, time=None, words=f"detection at step {found.index}")

    def _note(self, found: Detection | Decision, **known: Any) -> None:
        self.noted += 1
        entry = {"id": self.noted, "at": wall_time(), "number": found.number, "hit": None}
        self.strip.append(entry | known)

    def labelled(self, key: str, hit: bool | None) -> None:
        """Note whether a decision on the strip holds its label."""
        for entry in self.strip:
            if entry.get("key") == key:
                entry["hit"] = hit


def _in_words(decision: Decision) -> str:
    """An answer in a few words."""
    if not decision.answered:
        return "no answer"
    if decision.lower is not None and decision.upper is not None:
        return f"{decision.lower:.4g} to {decision.upper:.4g}"
    names = decision.names or list(map(str, decision.classes))
    words = ", ".join(names)
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"


def status(
    metrics: Metrics, watch: Watch | None, offer: Offer, sessions: int, clients: int, draining: bool
) -> dict[str, Any]:
    """All numbers of the page, as JSON can hold them; None where there is nothing to say yet."""
    p50, p99 = np.quantile(metrics.recent, [0.5, 0.99]).tolist() if metrics.recent else (None, None)
    return {
        "endless": offer.about["endless"],
        "promise": offer.promise,
        "sessions": sessions,
        "clients": clients,
        "draining": draining,
        "opened": metrics.opened,
        "messages": metrics.messages,
        "steps": metrics.steps,
        "decisions": metrics.decisions,
        "detections": metrics.detections,
        "errors": metrics.errors,
        "dropped_idle": metrics.idle,
        "dropped_slow": metrics.slow,
        "failures": dict(metrics.failures),
        "ticks": metrics.ticks,
        "tick_seconds": metrics.tick_seconds,
        "latency_p50": p50,
        "latency_p99": p99,
        "mean_time": metrics.stop_times / metrics.decisions if metrics.decisions else None,
        "last_time": offer.about.get("last_time"),
        "strip": list(metrics.strip),
        "stopping": _histogram(list(metrics.recent_times), offer.about.get("last_time")),
        **(_watched(watch) if watch is not None else {"alarms": [], "raised": [], "labels": 0}),
    }


def _watched(watch: Watch) -> dict[str, Any]:
    """What the drift monitor and the labels say."""
    monitor, target = watch.monitor, watch.monitor.calibrated.rule.terms.target
    coverage = Estimate.of_share(watch.hits, watch.labels, 0.95) if watch.labels else None
    return {
        "labels": watch.labels,
        "coverage": None if coverage is None else [float(coverage), coverage.low, coverage.high],
        "target": None if target is None else float(target),
        "watched": monitor.observed,
        "processed": monitor.labels,
        "waiting": monitor.waiting,
        "windows": _windows(list(watch.recent_hits)),
        "window": WINDOW,
        "alarms": [str(alarm) for alarm in monitor.alarms],
        "raised": [
            {
                "kind": alarm.kind,
                "words": str(alarm),
                "at": watch.alarm_times.get(alarm.kind),
                "advice": ADVICE[alarm.kind],
            }
            for alarm in monitor.alarms
        ],
        "alarm_at": float(1 / monitor.delta),
        "evidence": {
            "misses": float(np.log10(monitor.misses.evidence)),
            "inputs": float(np.log10(monitor.inputs.evidence)),
        },
    }


def _histogram(times: list[float], last: float | None) -> list[int]:
    """How many of the last decisions fell in each part of the stream; empty without any."""
    if not times:
        return []
    end = max(times) if last is None else last
    return [int(count) for count in np.histogram(times, BINS, (0.0, float(end)))[0]]


def _windows(hits: list[bool]) -> list[list[float]]:
    """Coverage [share, low, high] in windows of the last labels, each a few labels later."""
    found = []
    for end in range(len(hits), 0, -max(1, len(hits) // POINTS)):
        part = hits[max(0, end - WINDOW) : end]
        share = Estimate.of_share(sum(part), len(part), 0.95)
        found.append([float(share), share.low, share.high])
    return found[::-1]


def prometheus(metrics: Metrics, watch: Watch | None, sessions: int, clients: int) -> str:
    """The numbers in Prometheus' text format."""
    lines: list[str] = []

    def add(name: str, kind: str, words: str, *samples: tuple[str, float]) -> None:
        lines.extend((f"# HELP agreestop_{name} {words}", f"# TYPE agreestop_{name} {kind}"))
        lines.extend(f"agreestop_{name}{labels} {value:.17g}" for labels, value in samples)

    add("sessions", "gauge", "Open sessions.", ("", sessions))
    add("clients", "gauge", "Open connections.", ("", clients))
    add("sessions_opened_total", "counter", "Sessions opened.", ("", metrics.opened))
    add("messages_total", "counter", "Messages received.", ("", metrics.messages))
    add("steps_total", "counter", "Steps computed and log-confidences judged.", ("", metrics.steps))
    add("decisions_total", "counter", "Decisions.", ("", metrics.decisions))
    add("detections_total", "counter", "Detections in streams.", ("", metrics.detections))
    add("errors_total", "counter", "Messages refused.", ("", metrics.errors))
    dropped = ('{reason="idle"}', metrics.idle), ('{reason="slow"}', metrics.slow)
    add("dropped_total", "counter", "Idle sessions closed, and slow readers dropped.", *dropped)
    add("ticks_total", "counter", "Batches computed.", ("", metrics.ticks))
    add("tick_seconds_total", "counter", "Seconds spent on batches.", ("", metrics.tick_seconds))
    add(
        "stop_time_total",
        "counter",
        "Sum of the stopping times of the decisions.",
        ("", metrics.stop_times),
    )
    totals = list(accumulate(metrics.latency))
    buckets = [
        (f'_bucket{{le="{bound}"}}', total)
        for bound, total in zip((*BOUNDS, "+Inf"), totals, strict=True)
    ]
    add(
        "decision_seconds",
        "histogram",
        "Seconds from the arrival of a push to its decision.",
        *(*buckets, ("_sum", metrics.latency_sum), ("_count", totals[-1])),
    )
    if watch is None:
        return "\n".join(lines) + "\n"
    monitor = watch.monitor
    add("labels_total", "counter", "Labels of decisions since the start.", ("", watch.labels))
    add("hits_total", "counter", "Labels that the answer holds.", ("", watch.hits))
    add(
        "monitor_decisions",
        "gauge",
        "Decisions that the drift monitor has seen, earlier runs included.",
        ("", monitor.observed),
    )
    add(
        "monitor_labels",
        "gauge",
        "Labels that the drift monitor has processed, earlier runs included.",
        ("", monitor.labels),
    )
    raised = {alarm.kind for alarm in monitor.alarms}
    kinds = {"misses": monitor.misses, "inputs": monitor.inputs}
    add(
        "alarm",
        "gauge",
        "1 if this alarm was raised.",
        *((f'{{kind="{kind}"}}', kind in raised) for kind in kinds),
    )
    evidence = (
        (f'{{kind="{kind}"}}', float(np.log10(wealth.evidence))) for kind, wealth in kinds.items()
    )
    add("evidence_log10", "gauge", "Evidence for drift.", *evidence)
    return "\n".join(lines) + "\n"
