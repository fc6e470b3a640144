"""What an operator must know in time: the oplog window, a consumer's lag in it, liveness, alerts and metrics.

Everything here works on plain values (cluster times, byte counts, wall times that are passed in) and on a
MongoDB connection. It knows neither position stores nor producers: those call in, or the command line wires them.
"""

from tailrace.monitor.alerts import Alarm, Alert, Level, LogChannel, Thresholds, Verdict, WebhookChannel
from tailrace.monitor.endpoint import Action, Page, Site, serve_endpoint
from tailrace.monitor.liveness import PAUSED, LagLimits, Liveness, Observation, State, liveness_of
from tailrace.monitor.metrics import REGISTRY, DashboardMetrics, GatewayMetrics, StreamMetrics
from tailrace.monitor.observer import Consumer, Observer, Report
from tailrace.monitor.reader import ShardReader, shard_readers
from tailrace.monitor.window import Forecast, Lag, Oplog, Sample, Trend, lag_of

__all__ = [
    "PAUSED",
    "REGISTRY",
    "Action",
    "Alarm",
    "Alert",
    "Consumer",
    "DashboardMetrics",
    "Forecast",
    "GatewayMetrics",
    "Lag",
    "LagLimits",
    "Level",
    "Liveness",
    "LogChannel",
    "Observation",
    "Observer",
    "Oplog",
    "Page",
    "Report",
    "Sample",
    "ShardReader",
    "Site",
    "State",
    "StreamMetrics",
    "Thresholds",
    "Trend",
    "Verdict",
    "WebhookChannel",
    "lag_of",
    "liveness_of",
    "serve_endpoint",
    "shard_readers",
]
