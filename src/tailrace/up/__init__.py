"""Everything on one machine by one command: what to start, in which order, and keeping it running.

Belongs here: reading from the settings which servers are the user's own and which are to be started (`plan`), the
parts and how to see that each is ready (`parts`, `programs`), the supervisor that starts them again when they die, and
what the terminal shows. Does not: what the parts do. They are the stand's servers and the verbs of the command line.
"""

from tailrace.up.plan import Plan
from tailrace.up.run import run
from tailrace.up.views import JsonView, PlainView, TerminalView

__all__ = ["JsonView", "PlainView", "Plan", "TerminalView", "run"]
