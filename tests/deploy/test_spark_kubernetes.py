"""What a submission asks Kubernetes for: Spark's own client against an API server that writes down what is made."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tailrace.owned import run_guarded
from tailrace.stand.java import java_home

SUBMIT = Path(__file__).parents[2] / "deploy" / "spark" / "submit.sh"
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SECONDS = 300

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * SECONDS)]


@contextmanager
def api_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Takes every object that it is given and calls it made."""
    made: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})

        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given["metadata"] |= {"uid": "1", "resourceVersion": "1"}
            made.append(given)
            self._answer(given)

        do_PATCH = do_PUT = do_POST

        def _answer(self, form: dict[str, Any]) -> None:
            body = json.dumps(form).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"k8s://http://127.0.0.1:{server.server_port}", made
        finally:
            server.shutdown()
            thread.join(SECONDS)


@pytest.mark.parametrize("job", ["features", "warehouse"])
def test_the_driver_has_the_program_the_image_and_the_settings(job, tmp_path):
    """make spark-cluster"""
    with api_server() as (master, made):
        variables = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "MASTER": master,
            "IMAGE": "registry/tailrace-spark:1",
            "JARS": "local:///opt/spark/connectors/all.jar",
            "SPARK_SUBMIT": str(SPARK_SUBMIT),
            "SUBMIT_FLAGS": "--conf spark.kubernetes.submission.waitAppCompletion=false",
            "KUBECONFIG": str(tmp_path / "none"),
        }
        ended = run_guarded(
            [str(SUBMIT), job, "--checkpoint", "s3a://bucket/c"],
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    pod = next(one for one in made if one["kind"] == "Pod")
    (driver,) = pod["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] == "tailrace-spark"
    assert driver["image"] == "registry/tailrace-spark:1"
    assert f"local:///opt/tailrace/deploy/spark/{job}_job.py" in driver["args"]
    assert driver["args"][-2:] == ["--checkpoint", "s3a://bucket/c"]
    assert {"name": "TAILRACE_CONFIG", "value": "/etc/tailrace/tailrace.toml"} in driver["env"]
    assert "/etc/tailrace" in [mount["mountPath"] for mount in driver["volumeMounts"]]
    assert driver["resources"]["limits"]["cpu"] == "2"


def test_without_an_image_or_a_job_nothing_is_submitted():
    variables = {**os.environ, "MASTER": "k8s://http://127.0.0.1:9", "SPARK_SUBMIT": "/bin/false"}
    for arguments, complaint in (
        (["features"], "IMAGE"),
        (["no-such"], "no job no-such"),
        ([], "features or warehouse"),
    ):
        ended = run_guarded([str(SUBMIT), *arguments], env=variables, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode != 0
        assert complaint in ended.stderr
