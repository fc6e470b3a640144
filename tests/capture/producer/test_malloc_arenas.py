"""One heap for a producer's threads, as glibc itself counts them."""

import ctypes
import sys

import pytest

from tailrace.owned import run_guarded
from waiting import SECONDS

PROGRAM = """
import ctypes, sys, threading
from tailrace.cli.producing import limit_malloc_arenas

if sys.argv[1] == "one":
    limit_malloc_arenas()
together = threading.Barrier(4)
kept = []

def fill():
    together.wait(10)
    kept.append([bytes(1_000) for _ in range(2_000)])
    together.wait(10)

threads = [threading.Thread(target=fill) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(which: str) -> int:
    done = run_guarded(
        [sys.executable, "-c", PROGRAM, which], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")
def test_threads_share_one_malloc_arena() -> None:
    assert heaps("one") == 1
    assert heaps("own") > 1
