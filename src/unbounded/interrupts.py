"""Ctrl-C and the requests to end that machines send (SIGTERM, SIGHUP): one way to take them.

Four words. `taken`: requests raise KeyboardInterrupt, wherever the program is. `deferred`: the
first request is noted, for code that ends by itself where nothing is lost; the second raises.
`at_once`: inside of `deferred`, for a part that may be left at any place. `shielded`: requests are
noted and never raise, for a part that is short and must be whole, such as writing a file.

Signals are the main thread's: elsewhere all of this does nothing. A handler that somebody else has
set stays, and a signal that is ignored (as Ctrl-C is in what a shell runs in the background)
stays ignored.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
_WORDS = {"SIGINT": "Ctrl-C"}


class Request(threading.Event):
    """Whether an end was asked for, and by which signal."""

    number: int | None = None

    @property
    def name(self) -> str:
        """What asked, in words."""
        name = "SIGINT" if self.number is None else signal.Signals(self.number).name
        return _WORDS.get(name, name)

    @property
    def exit_status(self) -> int:
        """The exit status of who ends by this request, as shells have it."""
        return 128 + (signal.SIGINT if self.number is None else self.number)


# What the handler goes by. It runs in the main thread, and only the main thread sets this.
_deferring: Request | None = None
_shields = 0
_latest: int | None = None


def latest() -> int | None:
    """The signal that last asked for an end since `taken` or `deferred` began, if one did."""
    return _latest


def _handle(number: int, frame: Any) -> None:
    global _latest
    _latest = number
    if not _shields and (_deferring is None or _deferring.is_set()):
        raise KeyboardInterrupt
    if _deferring is not None:
        _deferring.number = number
        _deferring.set()


@contextmanager
def taken() -> Iterator[None]:
    """Requests raise KeyboardInterrupt; see `latest` for which one it was."""
    global _latest
    before = _install(*_NAMES)
    if before:
        _latest = None
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def deferred() -> Iterator[Request]:
    """The first request is noted in what this gives; a second one raises KeyboardInterrupt.

    Inside of another `deferred` it gives what that one gave: a request is heeded by all of them.
    """
    global _deferring
    if _deferring is not None or threading.current_thread() is not threading.main_thread():
        mine = threading.current_thread() is threading.main_thread()
        yield _deferring if mine and _deferring is not None else Request()
        return
    request = Request()
    before = _install("SIGINT", "SIGTERM")
    _deferring = request
    try:
        yield request
    finally:
        _deferring = None
        _restore(before)


@contextmanager
def at_once() -> Iterator[None]:
    """Requests raise KeyboardInterrupt although a `deferred` is around this."""
    global _deferring
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _deferring = _deferring, None
    try:
        yield
    finally:
        _deferring = outer


@contextmanager
def shielded() -> Iterator[None]:
    """Requests are noted and raise nothing; outside of `taken` and `deferred` this does nothing."""
    global _shields
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _shields += 1
    try:
        yield
    finally:
        _shields -= 1


def _install(*names: str) -> dict[int, Any]:
    """Handle all signals that nobody sees to; what was there before, by number."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler in _DEFAULTS}
    for number in before:
        signal.signal(number, _handle)
    return before


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
