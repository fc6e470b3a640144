"""The live page: what every part of the pipeline is doing, drawn, charted and explained, with a JSON API below it.

Belongs here: polling the parts (`sources`), judging what was observed (`view`), and serving that to browsers without
letting anybody in who should not be (`web`). Does not: doing the work (actions are passed on to the producers), and
alerts (`monitor`).
"""

from tailrace.dashboard.web.app import Dashboard
from tailrace.dashboard.web.serving import serve

__all__ = ["Dashboard", "serve"]
