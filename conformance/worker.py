"""Runs checks in a process of their own: a sampler that ends or blocks its process fails one check, and no more.

The process tells through a pipe what it begins and what it found. When it dies, or is silent for too long, the check
that it was at has failed, and a new process goes on with those that are left.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from conformance.claims import Claims
from conformance.limit import LIMIT, checked
from conformance.report import Probe, Report, Result
from conformance.runner import PROBING, Progress, Run
from conformance.siblings import load
from conformance.streams import ReferenceStream

GRACE = 10.0
"""Seconds that a process has, after the limit, to end a check by itself and to say so. A traceback takes less."""

MOST_DEATHS = 5
"""Processes in a row that may end without a check done: a sampler that ends each of them shows no more in the sixth."""

MOST_LINES = 20
"""Of what a process wrote before it died: a crash in a check has about so many frames of Python."""


def check_isolated(
    sampler: str,
    *,
    claims: str | None = None,
    limit: float = LIMIT,
    progress: Progress | None = None,
    output: Callable[[str], object] = lambda _text: None,
    **options: Any,
) -> Report:
    """What `conformance.check` does, in processes of their own.

    sampler, claims: names, as module:attribute, of a factory and of its claims.
    limit: seconds for one check. A process that is silent for `GRACE` seconds longer is killed.
    output: called with what the sampler printed and warned.
    options: those of `conformance.check` that are left: tier, device, only, seed, draws, expected_failures.

    Interrupting it (KeyboardInterrupt) keeps what was done. After `MOST_DEATHS` processes in a row that died at their
    first check, the rest is not run. Raises ValueError for what `check` refuses, and KeyboardInterrupt before a check.
    """
    work = _Work({"sampler": sampler, "claims": claims, "limit": checked(limit), **options}, limit, progress, output)
    with tempfile.TemporaryDirectory() as folder:
        interrupted = False
        try:
            work.run(Path(folder) / "output")
        except KeyboardInterrupt:
            if work.report is None:
                raise
            interrupted = True
    assert work.report is not None  # a run that was refused has raised
    done = {result.id for result in work.results}
    return replace(
        work.report,
        results=work.results,
        probes=work.probes,
        interrupted=interrupted,
        not_run=[each for each in work.required if each not in done],
        seconds=time.perf_counter() - work.began,
    )


def portable(report: Report) -> Report:
    """The report as it can be sent to another process: of functions and streams in its claims, the names are left."""
    claims = report.claims
    stream = None if claims.stream is None else ReferenceStream(claims.stream.name)
    make_context = None if claims.make_context is None else _Name(claims.to_json()["make_context"])
    return replace(report, claims=claims.but(stream=stream, make_context=make_context))


class _Name:
    """Stands for a function of that name."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self) -> None:
        raise NotImplementedError(f"{self.__qualname__} is in another process")


@dataclass(frozen=True)
class _Refused:
    """No run: why."""

    why: str


@dataclass(frozen=True)
class _Planned:
    """A run without results, ids of the checks chosen, and of those that count."""

    report: Report
    ids: list[str]
    required: list[str]


@dataclass(frozen=True)
class _Begun:
    """A check, with the result that it has if the process dies now, and the length of the output so far."""

    lost: Result
    written: int


@dataclass(frozen=True)
class _Done:
    """A check's result, and whether the process ends with it."""

    result: Result
    broken: bool


@dataclass(frozen=True)
class _Probing:
    """All checks are done."""


def _serve(pipe: Connection, arguments: dict[str, Any], results: list[Result], output: Path, patience: float) -> None:
    """What the process does: all checks but those that have results, then the probes.

    output: a file for all that is written. patience: seconds after which a check shows there where it is.
    """
    with output.open("ab", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed last must not be lost
    faulthandler.enable()
    sampler, claims = arguments.pop("sampler"), arguments.pop("claims")
    try:
        make_sampler = load("--sampler", sampler)
        stated: Claims | None = load("--claims", claims) if claims else None
        run = Run(make_sampler, claims=stated, name=sampler, **arguments)
    except ValueError as error:
        pipe.send(_Refused(str(error)))
        return
    pipe.send(_Planned(portable(run.report), run.ids, run.left([])))
    done = {result.id for result in results}
    for id in run.ids:  # noqa: A001  # the field's name
        if id not in done:
            pipe.send(_Begun(run.lost(id, "", 0.0), output.stat().st_size))
            # Shows where a call blocks that no signal ends. Nothing is left to show when the parent kills.
            faulthandler.dump_traceback_later(patience)
            result = run.one(id)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(_Done(result, run.broken))
            results.append(result)
            if run.broken:
                pipe.close()
                os._exit(0)  # with CUDA broken, a process may not come to its end
    pipe.send(_Probing())
    for probe in run.probes(results):
        pipe.send(probe)


@dataclass
class _Work:
    """The checks of a run, and what came of them so far."""

    arguments: dict[str, Any]
    limit: float
    progress: Progress | None
    output: Callable[[str], object]
    report: Report | None = None
    ids: list[str] = field(default_factory=list)
    required: Iterable[str] = ()
    results: list[Result] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    probing: bool = False
    began: float = 0.0
    _at: _Begun | None = None
    _read: int = 0

    def run(self, output: Path) -> None:
        """All checks, in as many processes as it takes, and probes in the last. output: a file for what they write."""
        output.touch()
        deaths = 0
        while not self.probing:
            before = len(self.results)
            ended_by_check = self._run_one(output)
            whole = len(self.results) - before - ended_by_check
            deaths = 0 if whole else deaths + 1
            if deaths == MOST_DEATHS:
                note = f"{MOST_DEATHS} processes in a row ended before a check was done: what is left was not run.\n"
                self.results[-1:] = [replace(last, error=last.error + note) for last in self.results[-1:]]
                return

    def _run_one(self, output: Path) -> bool:
        """One process, to its end. Returns whether a check ended it."""
        self._at = None
        context = multiprocessing.get_context("spawn")
        pipe, far = context.Pipe(duplex=False)
        arguments = (far, self.arguments, self.results, output, self.limit + GRACE / 2)
        process = context.Process(target=_serve, args=arguments)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is this process's to handle
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        far.close()
        try:
            return self._follow(process, pipe, output)
        except KeyboardInterrupt:
            process.kill()
            while (message := _received(pipe)) is not None:  # what was done, and is on its way
                self._take(message)
            raise
        finally:
            process.kill()
            process.join()
            pipe.close()

    def _follow(self, process: SpawnProcess, pipe: Connection, output: Path) -> bool:
        while True:
            since = time.monotonic()
            patience = self.limit if self._at else max(self.limit, LIMIT)  # an import may take longer than a check
            ready = wait([pipe, process.sentinel], timeout=patience + GRACE)
            message = _received(pipe) if pipe in ready else None
            if message is None:
                if not ready:
                    process.kill()
                process.join()
                how = _how(process.exitcode) if ready else f"did not end within {patience:g} s"
                return self._lost(how, output, time.monotonic() - since)
            self._take(message)
            if isinstance(message, _Done):
                self._relay(output)
                if message.broken:
                    return True

    def _take(self, message: Any) -> None:
        match message:
            case _Refused(why) if self.report is None:
                raise ValueError(why)
            case _Planned(report, ids, required):
                # A later process, after one that died, plans the same again.
                self.began = self.began or time.perf_counter()
                self.report, self.ids, self.required = report, ids, required
            case _Begun(lost):
                self._at = message
                self._show(len(self.results), lost.id)
            case _Done(result):
                self._at = None
                self.results.append(result)
            case _Probing():
                self.probing = True
                self._show(len(self.ids), PROBING)
            case Probe():
                self.probes.append(message)

    def _show(self, number: int, what: str) -> None:
        if self.progress:
            self.progress(number, len(self.ids), what)

    def _lost(self, how: str, output: Path, seconds: float) -> bool:
        """A process ended without a message: the check that it was at has failed. Returns whether it was at one."""
        self._relay(output)
        if self._at is not None:
            last = _last_words(_text(output, self._at.written))
            self.results.append(replace(self._at.lost, error=f"{how}\n{last}", seconds=seconds))
        elif self.report is None:
            raise ValueError(f"--sampler must make a sampler, got {self.arguments['sampler']!r}: {how}")
        return self._at is not None

    def _relay(self, output: Path) -> None:
        """Pass on what the processes wrote since the last time, but for what becomes part of a result."""
        new = _text(output, self._read)
        self._read = output.stat().st_size
        said = new[: min((found.start() for found in _LAST_WORDS.finditer(new)), default=len(new))]
        if said:
            self.output(said)


def _received(pipe: Connection) -> Any:
    """The next message; None at the end of the pipe, also where it ends within a message."""
    try:
        return pipe.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        return None


def _how(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"the process died: exit code {exit_code}"
    return f"the process died: signal {signal.Signals(-exit_code).name}"


_LAST_WORDS = re.compile(r"^(Fatal Python error:|Timeout \()", re.MULTILINE)
"""How a dump of faulthandler begins."""


def _last_words(written: str) -> str:
    """The last lines, and what faulthandler wrote, deepest frame first. Frames of C++ would push out what was wrong."""
    dump = _LAST_WORDS.search(written)
    before = written[: dump.start() if dump else len(written)].splitlines()
    after = written[dump.start() :].splitlines() if dump else []
    said = [line for line in before if line.strip() and not line.startswith("frame #")]
    frames = [line for line in after if line.strip() and not line.startswith("Extension modules:")]
    return "".join(f"{line}\n" for line in said[-MOST_LINES:] + frames[:MOST_LINES])


def _text(file: Path, start: int) -> str:
    """What it holds from a byte on."""
    return file.read_bytes()[start:].decode(errors="replace")
