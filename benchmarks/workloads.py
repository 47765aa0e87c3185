"""The workloads that are measured against peers: decisions, one live input, training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from agreestop.common import Booleans, Integers
from agreestop.engines.early_stopping import EarlyRun, RunOptions, decide_early
from agreestop.engines.live import LiveSession
from agreestop.ensembles.streams import StreamRecipe, StreamTraining
from agreestop.ensembles.training import TrainableMembers
from agreestop.events.container import Events
from agreestop.networks.architectures import SpikingNetwork

from .peers import (
    LEARNING_RATE,
    Form,
    FoundPeers,
    Peer,
    PeerEnsemble,
    Weights,
    forms_of,
    live_forms,
)
from .preparation import (
    BenchmarkPlan,
    EvaluatedRule,
    NoteCallback,
    PreparedMembers,
    architecture,
    ours,
)
from .records import DECISIONS, OURS, STEP, TRAINED, BenchRecord, compared
from .timing import Conditions, FormTrial, TimedSystem, fastest_form, measure

WANTED = {
    ("cpu", "decide-early"): "at least 10 × the fastest peer",
    ("cpu", "decide-joining"): "at least 10 × the fastest peer",
    ("cpu", "decide-full"): "at least 5 × the fastest peer",
    ("cpu", "stream-step"): "at most 60 µs a step, at least 20 × the fastest peer",
    ("cpu", "train"): "at least 1.5 × the fastest peer",
    ("cuda", "decide-early"): "at least 12 × the fastest peer",
    ("cuda", "decide-joining"): "at least 12 × the fastest peer",
    ("cuda", "decide-full"): "at least 8 × the fastest peer",
    ("cuda", "train"): "at least 3 × the fastest peer",
    ("cuda", "srm-kernel"): "at least 0.6 × a copy",
}
"""The goals, by device and workload."""


@dataclass(eq=False)
class Peers:
    """The installed peers, and for each workload the form that was found to be the fastest."""

    plan: BenchmarkPlan
    weights: Weights
    found: FoundPeers
    note: NoteCallback
    forms: dict[tuple[object, ...], Form] = field(default_factory=dict)

    def systems(
        self,
        work: str,
        batch: int,
        amount: float,
        forms: Callable[[Peer], list[Form]],
        runner: Callable[[PeerEnsemble], Callable[[], object]],
    ) -> list[TimedSystem]:
        """Every peer at the workload; `runner` returns what an ensemble runs. The form is chosen
        once for each workload and batch.
        """
        systems = []
        for peer in self.found.peers:
            key = (work, batch, peer.name)
            if key not in self.forms and not self._choose(key, peer, forms(peer), runner):
                continue
            form = self.forms[key]
            run = runner(PeerEnsemble(peer, form, self.weights, self.plan.device))
            systems.append(TimedSystem(work, peer.name, peer.version, str(form), run, amount))
        return systems

    def _choose(
        self,
        key: tuple[object, ...],
        peer: Peer,
        forms: list[Form],
        runner: Callable[[PeerEnsemble], Callable[[], object]],
    ) -> bool:
        def trial(form: Form) -> FormTrial:
            return FormTrial(
                lambda: runner(PeerEnsemble(peer, form, self.weights, self.plan.device)),
                form.warm_ups,
            )

        named = {str(form): form for form in forms}
        choice = fastest_form({name: trial(form) for name, form in named.items()}, self.plan.device)
        for name, why in choice.failures.items():
            self.note(f"{peer.name}, {key[0]}, {name}: does not work on this machine ({why}).")
        if choice.form is None:
            self.note(
                f"{peer.name} is left out of {key[0]}: none of its forms works on this machine."
            )
            return False
        self.forms[key] = named[choice.form]
        return True


def with_ratios(plan: BenchmarkPlan, records: Sequence[BenchRecord]) -> list[BenchRecord]:
    """The records, where ours have their ratio to the fastest peer and the goal."""
    peers = [record for record in records if record.system != OURS]
    return [
        record
        if record.system != OURS
        else replace(compared(record, peers), wanted=WANTED.get((plan.device, record.work)))
        for record in records
    ]


def bench_decisions(
    prepared: PreparedMembers, peers: Peers, name: str, inputs: Booleans, batch: int, early: bool
) -> list[BenchRecord]:
    """Decisions per second on inputs (n, T, ...), in batches: at T, and with `early` also as soon
    as the rule stops.
    """
    plan, engine, events = prepared.plan, prepared.engine(inputs), Events.from_dense(inputs)
    few = min(len(inputs), max(plan.batches))
    parts = [inputs[start : min(start + batch, few)] for start in range(0, few, batch)]

    def peer_run(ensemble: PeerEnsemble) -> Callable[[], object]:
        prepared = [ensemble.prepare(part) for part in parts]
        return lambda: [ensemble.decide(part) for part in prepared]

    def decide(rule: EvaluatedRule, chunk: int | None) -> Callable[[], EarlyRun]:
        return lambda: decide_early(
            engine, rule.calibrated, events, RunOptions(batch, chunk, any_engine=True)
        )

    systems = [
        ours(
            "decide-full",
            f"{engine.name} engine, the rule at every step",
            decide(prepared.rule, plan.steps),
            len(inputs),
        )
    ]
    rules = {"decide-early": ("stops with AgreeStop", prepared.rule)} if early else {}
    if early and prepared.joining is not None:
        rules["decide-joining"] = ("stops with AgreeStop, members join", prepared.joining)
    systems += [
        ours(work, f"{engine.name} engine, {form}", decide(rule, None), len(inputs))
        for work, (form, rule) in rules.items()
    ]
    systems += peers.systems(
        "decide-full", batch, few, lambda peer: forms_of(peer, plan.device, plan.plain), peer_run
    )
    records = with_ratios(
        plan, measure(systems, Conditions(name, DECISIONS, batch), plan.repeats, plan.device)
    )
    for at, (_, rule) in enumerate(rules.values(), start=1):
        if rule.evaluation is not None:
            records[at] = replace(
                records[at],
                coverage=float(rule.evaluation.coverage),
                latency=float(rule.evaluation.normalized_latency),
                set_size=float(rule.evaluation.set_size),
                computed=float(decide(rule, None)().work.mean()) / (plan.steps * plan.members),
            )
    return records


def bench_streams(
    prepared: PreparedMembers, peers: Peers, name: str, inputs: Booleans
) -> list[BenchRecord]:
    """Microseconds per step of one live input and all members; inputs (streams, T, ...), one after
    the other.
    """
    plan, engine, calibrated = prepared.plan, prepared.engine(inputs), prepared.rule.calibrated
    events = [[np.flatnonzero(frame) for frame in one] for one in inputs]
    frames = [[torch.from_numpy(frame).flatten()[None].float() for frame in one] for one in inputs]
    lives: list[Any] = []
    sessions: list[LiveSession] = []

    def prepare_lives() -> None:
        lives[:] = [engine.live() for _ in events]

    def prepare_sessions() -> None:
        sessions[:] = [
            LiveSession(engine, calibrated, options=RunOptions(any_engine=True)) for _ in events
        ]

    def push() -> None:
        for live, one in zip(lives, events, strict=True):
            for step in one:
                live.push(step)

    def push_and_judge() -> int:
        for session, one in zip(sessions, events, strict=True):
            for step in one:
                if session.push(step) is not None:
                    break
        return sum(session.time for session in sessions)

    def peer_run(ensemble: PeerEnsemble) -> Callable[[], object]:
        def run() -> None:
            for one in frames:
                ensemble.begin()
                for frame in one:
                    ensemble.step(frame)

        return run

    prepare_sessions()
    pushed, steps = push_and_judge(), len(inputs) * plan.steps
    systems = [
        ours("stream-step", f"{engine.name} engine only", push, steps, prepare=prepare_lives),
        ours(
            "stream-step",
            f"{engine.name} engine and the rule, until it stops",
            push_and_judge,
            pushed,
            prepare=prepare_sessions,
        ),
        *peers.systems("stream-step", 1, steps, lambda peer: live_forms(), peer_run),
    ]
    return with_ratios(plan, measure(systems, Conditions(name, STEP, 1), plan.repeats, plan.device))


def bench_training(
    prepared: PreparedMembers,
    peers: Peers,
    name: str,
    inputs: Booleans,
    labels: Integers,
    batch: int,
) -> list[BenchRecord]:
    """Inputs per second in the training of all members, in batches; inputs (batch · rounds, T,
    ...).
    """
    plan = prepared.plan
    settings = StreamTraining(1, batch, LEARNING_RATE, plan.seed, device=plan.device)

    def train_ours(learned: bool) -> Callable[[], object]:
        model = TrainableMembers(
            SpikingNetwork(architecture(plan, learned), torch.Generator().manual_seed(plan.seed))
        )
        model.network.load_state_dict(prepared.network.state_dict())
        trainer, starts = StreamRecipe(model, settings, len(inputs)), range(0, len(inputs), batch)
        return lambda: [
            trainer.step(inputs[at : at + batch], labels[at : at + batch], 0.5) for at in starts
        ]

    def peer_run(ensemble: PeerEnsemble) -> Callable[[], object]:
        starts = range(0, len(inputs), batch)
        parts = [
            (ensemble.prepare(inputs[at : at + batch]), torch.from_numpy(labels[at : at + batch]))
            for at in starts
        ]
        return lambda: [ensemble.train_step(*part) for part in parts]

    systems = [
        ours("train", "weights", train_ours(learned=False), len(inputs)),
        ours(
            "train", "weights, time constants and thresholds", train_ours(learned=True), len(inputs)
        ),
        *peers.systems(
            "train",
            batch,
            len(inputs),
            lambda peer: forms_of(peer, plan.device, plan.plain),
            peer_run,
        ),
    ]
    return with_ratios(
        plan, measure(systems, Conditions(name, TRAINED, batch), plan.repeats, plan.device)
    )
