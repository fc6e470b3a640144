"""A small program between an owner and a program that it starts, so that no program outlives its owner.

It runs the program as its child and ends it as soon as the owner is gone, however the owner ended
(`kill -9` included): the owner holds the write end of a pipe, and the kernel closes that end for it. If the
guardian itself is killed, the kernel kills the program (PR_SET_PDEATHSIG). It is run as a script by
`processes.py`, without site packages, so it imports nothing of tailrace.

    guardian.py OWNER_PIPE_FD STATUS_FD UID COMMAND...

UID -1 keeps the user. The program's process id goes to STATUS_FD. The guardian ends as the program did: by the
same exit code, or by the same signal.
"""

import ctypes
import os
import resource
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0
ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


def start_program(command: list[str], uid: int, guardian: int) -> int:
    """Fork the program into a session of its own and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    # A signal that is ignored stays ignored over exec, and a JVM then never sees it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
    if uid >= 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    # After setuid, which clears the setting.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
        os._exit(127)


def kill_group(pid: int) -> None:
    """Kill the program and whatever it started.

    An owner that goes at once finds a program that is forked but leads no group yet: it has started nothing, and
    is killed by itself.
    """
    for kill in (os.kill, os.killpg):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def let_go_of_streams() -> None:
    """Leave standard input and output to the program, so that each side of them sees when the other ends."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def end_as(status: int) -> int:
    """Give the exit code of a program, or die of the signal that it died of."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def main() -> int:
    """Run the program until it ends or the owner does."""
    owner_pipe, status, uid = (int(text) for text in sys.argv[1:4])
    # One that comes between the fork and the exec waits until the program takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKED_TO_END)
    for number in ASKED_TO_END:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (owner_pipe, status):
        os.set_inheritable(descriptor, False)
    owner = os.getppid()
    program_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    program = start_program(sys.argv[4:], uid, os.getpid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
    let_go_of_streams()
    os.write(status, f"{program}\n".encode())
    os.close(status)
    while True:
        ready, _, _ = select.select([owner_pipe, program_ended], [], [], POLL_SECONDS)
        ended, code = os.waitpid(program, os.WNOHANG)
        if ended:
            kill_group(program)
            return end_as(code)
        if owner_pipe in ready or os.getppid() != owner:
            kill_group(program)
            os.waitpid(program, 0)
            return 0
        if program_ended in ready:
            os.read(program_ended, 4096)


if __name__ == "__main__":
    sys.exit(main())
