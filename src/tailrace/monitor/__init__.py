"""What an operator must know in time: the oplog window, a consumer's lag in it, liveness, alerts and metrics.

Everything here works on plain values (cluster times, byte counts, wall times that are passed in) and on a
MongoDB connection. It knows neither position stores nor producers: those call in, or the command line wires them.
"""

from tailrace.monitor.alerts import Alert, Level, Thresholds, Verdict
from tailrace.monitor.endpoint import Site, serve_endpoint
from tailrace.monitor.liveness import PAUSED, LagLimits, Liveness, Observation, State, liveness_of
from tailrace.monitor.metrics import REGISTRY, DashboardMetrics, GatewayMetrics, StreamMetrics
from tailrace.monitor.observer import Consumer, Observer, Report
from tailrace.monitor.reader import ShardReader, shard_readers
from tailrace.monitor.window import Forecast, Lag, Oplog, Sample, lag_of

__all__ = [
    "PAUSED",
    "REGISTRY",
    "Alert",
    "Consumer",
    "DashboardMetrics",
    "Forecast",
    "GatewayMetrics",
    "Lag",
    "LagLimits",
    "Level",
    "Liveness",
    "Observation",
    "Observer",
    "Oplog",
    "Report",
    "Sample",
    "ShardReader",
    "Site",
    "State",
    "StreamMetrics",
    "Thresholds",
    "Verdict",
    "lag_of",
    "liveness_of",
    "serve_endpoint",
    "shard_readers",
]
