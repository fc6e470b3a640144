"""A small program between an owner and a server, so that no server outlives its owner.

It runs the server as its child and ends it as soon as the owner is gone, however the owner ended
(`kill -9` included): the owner holds the write end of a pipe, and the kernel closes that end for it. If the
guardian itself is killed, the kernel kills the server (PR_SET_PDEATHSIG). It is run as a script by
`process.py`, without site packages, so it imports nothing of tailrace.

    guardian.py OWNER_PIPE_FD STATUS_FD UID COMMAND...

UID -1 keeps the user. The server's process id goes to STATUS_FD; the exit code is the server's own.
"""

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_LOOKS = 1.0


def start_server(command: list[str], uid: int, guardian: int) -> int:
    """Fork the server into a session of its own and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    # A signal that is ignored stays ignored over exec, and a JVM then never sees it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
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
    """Kill the server and whatever it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> int:
    """Run the server until it ends or the owner does."""
    owner_pipe, status, uid = (int(text) for text in sys.argv[1:4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    owner = os.getppid()
    server_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    server = start_server(sys.argv[4:], uid, os.getpid())
    os.write(status, f"{server}\n".encode())
    os.close(status)
    while True:
        ready, _, _ = select.select([owner_pipe, server_ended], [], [], SECONDS_BETWEEN_LOOKS)
        ended, code = os.waitpid(server, os.WNOHANG)
        if ended:
            kill_group(server)
            return os.waitstatus_to_exitcode(code) & 0xFF
        if owner_pipe in ready or os.getppid() != owner:
            kill_group(server)
            os.waitpid(server, 0)
            return 0
        if server_ended in ready:
            os.read(server_ended, 4096)


if __name__ == "__main__":
    sys.exit(main())
