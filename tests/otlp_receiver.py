"""An OTLP receiver on loopback: takes what an exporter posts and decodes it by OpenTelemetry's own protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from listening import serving_http

_REQUESTS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class OtlpReceiver:
    """Keeps what came, with the name of the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.services: set[str] = set()
        self.status = 200
        self.changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def trace(self, trace_id: str) -> list[Any]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]

    def metric(self, name: str) -> Any:
        return next(metric for metric in reversed(self.metrics) if metric.name == name)

    def _take(self, path: str, body: bytes) -> None:
        request = _REQUESTS[path].FromString(body)
        with self.changed:
            for part in getattr(request, "resource_spans", ()):
                self._note(part.resource)
                self.spans += [span for scope in part.scope_spans for span in scope.spans]
            for part in getattr(request, "resource_metrics", ()):
                self._note(part.resource)
                self.metrics += [metric for scope in part.scope_metrics for metric in scope.metrics]
            self.changed.notify_all()

    def _note(self, resource: Any) -> None:
        self.services |= {each.value.string_value for each in resource.attributes if each.key == "service.name"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200:
                    receiver._take(
                        self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                    )
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        return Handler

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[OtlpReceiver]:
        made = cls()
        with serving_http(made._server, "otlp-receiver"):
            yield made


def attributes_of(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}
