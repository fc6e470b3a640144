"""What an operator must know in time: the oplog window, a consumer's place in it, liveness, alerts and metrics.

Everything here works on plain values (cluster times, byte counts, wall times that are passed in) and on a
MongoDB connection. It knows neither position stores nor producers: those call in, or the command line wires them.
"""

from tailrace.monitor.liveness import State
from tailrace.monitor.metrics import REGISTRY, StreamMetrics, serve_metrics

__all__ = ["REGISTRY", "State", "StreamMetrics", "serve_metrics"]
