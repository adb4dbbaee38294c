"""SIGTERM is told like Ctrl-C, once."""

import signal
import threading

import pytest

from conformance.signals import sigterm_interrupts


def test_the_first_interrupts_and_the_second_does_not_end_what_is_then_written() -> None:
    before = signal.getsignal(signal.SIGTERM)
    written = []
    with sigterm_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # `timeout` sends it to the process, and then to its group
        written.append("report")
    assert written == ["report"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_leaves_signals_as_they_are() -> None:
    found = []

    def look() -> None:
        with sigterm_interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
