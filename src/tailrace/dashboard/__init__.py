"""The live page: what every part of the pipeline is doing, drawn, charted and explained, with a JSON API below it.

Belongs here: looking at the parts (`sources`), judging and drawing what was seen, and serving that to browsers without
letting anybody in who should not be. Does not: doing the work (actions are passed on to the producers), and alerts
(`monitor`).
"""

from tailrace.dashboard.app import Dashboard
from tailrace.dashboard.serving import serve

__all__ = ["Dashboard", "serve"]
