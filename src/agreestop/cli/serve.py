"""`agreestop serve`: a rule file and its members become a server for live inputs."""

import os
from pathlib import Path
from typing import Annotated

import typer

from agreestop.common import InputError
from agreestop.decide.calibrated import load_rule
from agreestop.decide.rule_files import kept_kind
from agreestop.decide.spotting import Spotter

from .console import (
    Engine,
    Members,
    errors_name_options,
    guarantee_in_words,
    never_stops,
    say,
    say_warning,
    show,
)
from .decide import AnyEngine, AnyMembers, RuleFile, load_members
from .spot import SPOTTER

TOKEN = "AGREESTOP_TOKEN"
NOTE = (
    "anybody who can reach this port may open sessions and give labels: give --token, or keep the "
    "host 127.0.0.1."
)


def serve(
    rule: RuleFile,
    members: Members = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default only this machine can connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN, help="What clients must know to connect.")
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(
            "--monitor",
            help="File of the drift monitor, to go on with or to begin. [default: RULE.monitor]",
        ),
    ] = None,
    spotter: Annotated[
        Path | None,
        typer.Option(
            help="Spotter that watches streams without an end; RULE decides after a detection."
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="With --spotter: steps whose counts make a score.")
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(help="With --spotter: class that is spotted, a name or number; repeatable."),
    ] = None,
    skip: Annotated[
        int, typer.Option(help="With --spotter: steps after a detection that the rule skips.")
    ] = 0,
    log: Annotated[
        Path | None,
        typer.Option(help="Append decisions, labels and alarms to this file, as JSON Lines."),
    ] = None,
    log_bytes: Annotated[
        int, typer.Option(help="With --log: a file of this size is renamed, and a new one begun.")
    ] = 100 << 20,
    log_files: Annotated[
        int, typer.Option(help="With --log: full files that are kept; older ones are deleted.")
    ] = 10,
    engine: Engine = "auto",
    any_engine: AnyEngine = False,
    any_members: AnyMembers = False,
    sessions: Annotated[int, typer.Option(help="Sessions open at once, in all.")] = 4000,
    sessions_per_client: Annotated[
        int, typer.Option(help="Sessions open at once on one connection.")
    ] = 1000,
    message_bytes: Annotated[int, typer.Option(help="Largest message.")] = 1 << 20,
    idle_seconds: Annotated[
        float, typer.Option(help="A session without a push is closed after this time.")
    ] = 60.0,
    session_seconds: Annotated[
        float, typer.Option(help="A session without a decision is closed after this time.")
    ] = 600.0,
    label_seconds: Annotated[
        float, typer.Option(help="A label that has not come after this time is given up.")
    ] = 3600.0,
    restart_seconds: Annotated[
        float,
        typer.Option(
            help="The labels of decisions from before a restart are given up after this time."
        ),
    ] = 60.0,
    drain_seconds: Annotated[
        float, typer.Option(help="Sessions may go on for this time after SIGTERM.")
    ] = 10.0,
) -> None:
    """Serve live inputs over a WebSocket, with a page at / that shows sessions, latency,
    coverage and alarms.

    Without --members clients push what the rule reads: log-confidences, open answers, numbers or
    risks. A spotter serves streams without an end: as RULE, clients push scores; as --spotter, the
    members watch. The monitor is saved every second, so a kill loses little of it. docs/protocol.md
    describes the messages; `agreestop.serve.Client` speaks them.
    """
    if os.environ.get(TOKEN) == "" and token is None:
        raise InputError(
            f"{TOKEN} is set but empty, and would protect nothing: give it a value, or unset it."
        )
    from agreestop.serve import Limits, Server
    from agreestop.serve.app import LOOPBACK

    calibrated, watched = None, spotter
    if kept_kind(rule) == SPOTTER:
        if spotter is not None or members is not None:
            raise InputError(
                f"{rule} is a spotter: give the class rule first, and --spotter {rule}, to watch "
                "with members; or the spotter alone."
            )
        watched = rule
    else:
        calibrated = load_rule(rule)
        if sentence := never_stops(calibrated):
            say(sentence)
    ensemble = None
    if members is not None and calibrated is not None:
        say(f"Loading {members} and compiling what runs it; this can take a while.")
        ensemble = load_members(members, engine, calibrated)
    elif engine != "auto":
        raise InputError(
            f"--engine is {engine}, but without --members nothing is run: leave it out, or give "
            "members."
        )
    with errors_name_options():
        limits = Limits(
            message_bytes,
            sessions,
            sessions_per_client,
            idle_seconds=idle_seconds,
            session_seconds=session_seconds,
            label_seconds=label_seconds,
            restart_seconds=restart_seconds,
            drain_seconds=drain_seconds,
        )
        kept = None if watched is not None else rule.with_name(rule.name + ".monitor")
        server = Server(
            calibrated,
            ensemble,
            spotter=None if watched is None else Spotter.load(watched),
            window=window,
            event=_as_event(event),
            skip=skip,
            host=host,
            port=port,
            token=token,
            monitor=monitor or kept,
            log=log,
            log_bytes=log_bytes,
            log_files=log_files,
            limits=limits,
            any_engine=any_engine,
            any_members=any_members,
        )
    if host not in LOOPBACK and token is None:
        say_warning(NOTE)
    if watched is None and calibrated is not None:
        show(guarantee_in_words(calibrated))
    else:
        promise = server.hub.offer.promise
        show(f"Guarantee: {promise[0].lower()}{promise[1:]}")
    show(
        f"Serving on http://{server.url}; clients connect to ws://{server.url}. Ctrl-C drains and "
        "ends.",
        unbroken=True,
    )
    server.run()


def _as_event(event: list[str] | None) -> list[int | str] | None:
    """Names of classes, and numbers as numbers."""
    return [int(one) if one.isdecimal() else one for one in event] if event else None
