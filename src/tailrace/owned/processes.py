"""Processes that end with this one, however it ends: each runs under a guardian, a small program of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr, Final

_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
_PR_SET_PDEATHSIG: Final = 1


class GuardedProcess(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` whose program, and whatever that starts, ends when this process does.

    Signals go to the program, and the return code is the program's; `pid` is the guardian's, `program_pid` the
    program's. It runs in a session of its own: a Ctrl-C on the terminal is for its owner. `uid` is a user to become
    first.
    """

    def __init__(self, command: Sequence[str | os.PathLike[str]], *, uid: int | None = None, **options: Any) -> None:
        owner_read, owner_write = os.pipe()
        status_read, status_write = os.pipe()
        self._owner_pipe: int = owner_write
        self.program_pid: int = 0
        guardian: list[str] = [sys.executable, "-I", "-S", str(_GUARDIAN)]
        arguments: list[str] = [str(owner_read), str(status_write), str(-1 if uid is None else uid)]
        try:
            super().__init__(
                [*guardian, *arguments, *[os.fspath(part) for part in command]],
                pass_fds=(owner_read, status_write, *options.pop("pass_fds", ())),
                start_new_session=True,
                **options,
            )
        finally:
            os.close(owner_read)
            os.close(status_write)
            with open(status_read, "rb") as status:
                self.program_pid = int(status.readline() or 0)
        self.args = list(command)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program; nothing when it has ended."""
        if self.poll() is None and self.program_pid:
            try:
                os.kill(self.program_pid, sig)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        """Ask the program to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program at once."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program's end and give its return code."""
        code = super().wait(timeout)
        self._let_go()
        return code

    def __del__(self, *arguments: Any, **options: Any) -> None:
        self._let_go()
        super().__del__(*arguments, **options)

    def _let_go(self) -> None:
        """Close our end of the guardian's pipe, by which a program that still runs is ended."""
        pipe, self._owner_pipe = getattr(self, "_owner_pipe", -1), -1
        if pipe >= 0:
            os.close(pipe)


def run_guarded(
    command: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    input: Any = None,
    capture_output: bool = False,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run` does; it is killed when it takes longer than `timeout` seconds."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with GuardedProcess[Any](command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that made it ends; for processes that a library forks."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)


@contextmanager
def handling_signals(handler: Callable[[int, Any], object], numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Have signals of this process handled so for a while, and then as they were before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
