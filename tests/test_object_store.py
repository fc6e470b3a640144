"""What Spark's settings for a bucket mean to readers without Spark, and what is wrong with one, by its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3_server import HADOOP_AWS
from tailrace.errors import FileUnusable, NotAuthorized, ServerUnreachable, SettingsError
from tailrace.masking import means_a_secret
from tailrace.object_store import file_properties, is_s3, store_error, uses_s3a

LAKE = "s3a://lake/tables"


def spark(**options: str) -> dict[str, str]:
    return {f"spark.hadoop.fs.s3a.{name.replace('_', '.')}": value for name, value in options.items()}


def properties(config: dict[str, str], catalog: dict[str, str] | None = None) -> dict[str, str]:
    given = file_properties(LAKE, config, catalog)
    return {name: value for name, value in given.items() if "timeout" not in name}


def test_the_login_and_the_server_are_the_same() -> None:
    config = spark(
        access_key="A", secret_key="B", session_token="C", endpoint="http://127.0.0.1:9000", path_style_access="true"
    )
    assert properties(config) == {
        "s3.access-key-id": "A",
        "s3.secret-access-key": "B",
        "s3.session-token": "C",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.force-virtual-addressing": "false",
        "s3.region": "us-east-1",
    }


def test_without_settings_of_spark_the_machine_s_own_login_is_used() -> None:
    assert properties({"spark.hadoop.dfs.x": "y", "fs.s3a.access.key": "not Spark's"}) == {}
    assert file_properties("", {}) == {}
    assert properties(spark(endpoint_region="eu-west-1")) == {"s3.region": "eu-west-1"}


@pytest.mark.parametrize(
    ("options", "endpoint", "region"),
    [
        ({"endpoint": "minio:9000"}, "https://minio:9000", "us-east-1"),
        ({"endpoint": "minio:9000", "connection_ssl_enabled": "false"}, "http://minio:9000", "us-east-1"),
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, "https://s3.eu-west-1.amazonaws.com", None),
        ({"endpoint": "minio:9000", "endpoint_region": "here"}, "https://minio:9000", "here"),
    ],
)
def test_a_server_without_a_scheme(options: dict[str, str], endpoint: str, region: str | None) -> None:
    given = properties(spark(**options))
    assert (given["s3.endpoint"], given.get("s3.region")) == (endpoint, region)
    assert given["s3.force-virtual-addressing"] == "true", "S3A puts the bucket before the host's name by default"


def test_a_bucket_s_own_settings_and_the_catalog_s_count_more() -> None:
    config = spark(access_key="all", secret_key="all", bucket_lake_access_key="lake", bucket_other_access_key="other")
    assert properties(config)["s3.access-key-id"] == "lake"
    assert properties(config, {"hadoop.fs.s3a.secret.key": "catalog"})["s3.secret-access-key"] == "catalog"


def test_other_logins() -> None:
    anonymous = spark(aws_credentials_provider="org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider")
    assert properties(anonymous) == {"s3.anonymous": "true"}
    role = spark(assumed_role_arn="arn:aws:iam::1:role/x", proxy_host="proxy", proxy_port="3128")
    assert properties(role) == {"s3.role-arn": "arn:aws:iam::1:role/x", "s3.proxy-uri": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"aws_credentials_provider": "com.example.Own"}, "fs.s3a.aws.credentials.provider com.example.Own"),
        ({"security_credential_provider_path": "jceks://x"}, "fs.s3a.security.credential.provider.path"),
        ({"encryption_algorithm": "SSE-C"}, "fs.s3a.encryption.algorithm SSE-C"),
        ({"proxy_host": "proxy", "proxy_username": "me"}, "fs.s3a.proxy.username"),
    ],
)
def test_what_spark_alone_can_do_is_refused_by_name(options: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        file_properties(LAKE, spark(**options))
    assert "--engine spark" in refused.value.hint


SAID = [
    ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", SettingsError),
    ('UnsupportedFileSystemException: No FileSystem for scheme "s3"', SettingsError),
    ("org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://none/x': getFileStatus on s3a://none/x", FileUnusable),
    ("When listing objects under key '' in bucket 'none': AWS Error NO_SUCH_BUCKET during ListObjectsV2", FileUnusable),
    (
        "java.nio.file.AccessDeniedException: s3a://lake/x: (Service: S3, Status Code: 403, Request: a)",
        NotAuthorized,
    ),
    ("AccessDeniedException: s3a://lake/x: NoAuthWithAWSException: No AWS Credentials provided by x", NotAuthorized),
    ("When reading: AWS Error SIGNATURE_DOES_NOT_MATCH during HeadObject operation", NotAuthorized),
    ("ConnectException: SdkClientException: Unable to execute HTTP request: Connection refused", ServerUnreachable),
    ("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 7, Couldn't connect", ServerUnreachable),
]


@pytest.mark.parametrize(("text", "kind"), SAID)
def test_what_stores_say(text: str, kind: type[Exception]) -> None:
    error = store_error(text, LAKE)
    assert type(error) is kind
    assert error.hint


def test_the_jars_that_are_missing_are_named_as_the_page_does() -> None:
    error = store_error(SAID[0][0], LAKE)
    assert error is not None
    page = Path(__file__).parents[1] / "docs" / "howto" / "object-stores.md"
    assert HADOOP_AWS in error.hint
    assert HADOOP_AWS in page.read_text()


def test_other_errors_are_not_of_stores() -> None:
    for text in (
        "java.nio.file.AccessDeniedException: /var/lib/x",
        "java.net.ConnectException: kafka",
        "Status Code: 403",
    ):
        assert store_error(text) is None


def test_addresses_of_s3() -> None:
    assert [is_s3(one) for one in ("s3a://b/x", "s3://b", "file:///x", "lake", "gs://b")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_catalogs_with_a_file_client_of_their_own_have_settings_of_their_own() -> None:
    assert uses_s3a({"type": "jdbc", "warehouse": LAKE})
    assert not uses_s3a({"type": "rest", "warehouse": LAKE, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"})
    assert not uses_s3a({"type": "glue", "warehouse": "s3://lake/tables"})
    assert not uses_s3a({"type": "rest"})


def test_every_secret_of_s3a_is_known_as_one() -> None:
    for name in (
        "access.key",
        "secret.key",
        "session.token",
        "bucket.lake.secret.key",
        "proxy.password",
        "encryption.key",
    ):
        assert means_a_secret(f"spark.hadoop.fs.s3a.{name}"), name
