"""An object store that speaks S3: the server of `moto`, from PyPI, with a user of its own and what that user may do.

It keeps its objects in memory, so they are gone with the process. Signatures and policies are checked as its IAM has
them: a wrong secret, an unknown key and a bucket that is not there are answered as S3 does. It is not AWS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tailrace.stand.maven import fetch_jars, read_checksums
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import ServerFolder, SingleServer, ask

REGION = "us-east-1"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.4.1"
"""S3A for the Hadoop of PySpark 4.0, which brings AWS's library along: 546 MB."""
_CHECKSUMS = Path(__file__).with_name("hadoop_aws.sha256")
_SETUP = 3
"""The requests that make the user; from then on every one has to be signed by a user who may do it."""


def jars() -> list[Path]:
    """The jars that Spark needs for a bucket, fetched on the first call."""
    return fetch_jars("hadoop-aws", [HADOOP_AWS], read_checksums(_CHECKSUMS))


class S3(SingleServer):
    """One process, and the key of the one user it knows."""

    name = "s3"

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__(folder)
        self.key = self.secret = ""
        self._process = ServerProcess(
            f"moto at port {self.port}",
            [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)],
            log=self._log_file,
            folder=folder.path,
            environment={"INITIAL_NO_AUTH_ACTION_COUNT": str(_SETUP), "MOTO_S3_CUSTOM_ENDPOINTS": self.url},
        )

    @classmethod
    def start(cls, buckets: Iterable[str] = (), *, folder: Path | None = None) -> S3:
        """Start a server with these buckets and nothing in them."""
        server = cls(ServerFolder.make(cls.name, folder))._started()
        server._make_user()
        for bucket in buckets:
            server.client().create_bucket(Bucket=bucket)
        return server

    @property
    def url(self) -> str:
        """What a client's endpoint is set to."""
        return f"http://{self.address}"

    def client(self, kind: str = "s3") -> Any:
        """A client of AWS's own library, logged in as the user."""
        return boto3.client(
            kind,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.key or "none",
            aws_secret_access_key=self.secret or "none",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def contents(self, bucket: str) -> dict[str, bytes]:
        """All objects of a bucket."""
        client = self.client()
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in self.keys(bucket)}

    def spark_config(self, **other: str) -> dict[str, str]:
        """What a user gives Spark to reach it; `other` are properties of S3A, with `_` for the dots in their names."""
        chosen = {
            "endpoint": self.url,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "access.key": self.key,
            "secret.key": self.secret,
            **{name.replace("_", "."): value for name, value in other.items()},
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in chosen.items()}

    def _make_user(self) -> None:
        iam = self.client("iam")
        iam.create_user(UserName="tailrace")
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="tailrace", PolicyName="all", PolicyDocument=json.dumps(allowed))
        made = iam.create_access_key(UserName="tailrace")["AccessKey"]
        self.key, self.secret = made["AccessKeyId"], made["SecretAccessKey"]

    def _answers(self) -> bool:
        """Whether it answers at all; its own status page counts as no action."""
        request = f"GET /moto-api/data.json HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n\r\n"
        return ask(self.port, request.encode(), 15) == b"HTTP/1.1 200 OK"
