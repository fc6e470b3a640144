"""Object stores by Spark's own settings: what `spark.hadoop.fs.s3a.*` means to readers without Spark, and errors of S3.

Spark reaches a bucket by Hadoop's S3A. `tailrace sql` and the dashboard read the same tables by PyIceberg, and must
come to the same bucket with the same login, so the one set of properties is translated here. What only S3A can do is
refused by the name of its property.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from tailrace.errors import FileUnusable, NotAuthorized, ServerUnreachable, SettingsError, TailraceError

S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
_S3A: Final = "fs.s3a."
_FROM_SPARK: Final = "spark.hadoop."
FROM_CATALOG: Final = "hadoop."
"""How a catalog's own property begins that Iceberg hands to Hadoop."""
_SAME: Final = {
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "endpoint.region": "s3.region",
    "assumed.role.arn": "s3.role-arn",
    "assumed.role.session.name": "s3.role-session-name",
}
_PROVIDERS: Final = frozenset(
    {
        "AnonymousAWSCredentialsProvider",
        "AnonymousCredentialsProvider",
        "AssumedRoleCredentialProvider",
        "ContainerCredentialsProvider",
        "DefaultCredentialsProvider",
        "EnvironmentVariableCredentialsProvider",
        "IAMInstanceCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "ProfileCredentialsProvider",
        "SimpleAWSCredentialsProvider",
        "TemporaryAWSCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
    }
)
"""Ways to log in that Arrow has as well."""
_OWN_KEYS: Final = ("SSE-C", "CSE-KMS", "CSE-CUSTOM")
_SPARK_READS: Final = "Ask with `tailrace sql --engine spark`."
_TIMES: Final = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}
"""Arrow tries again on its own; without these it would wait for minutes for a server that is away."""

_NO_JARS: Final = re.compile(
    r"org\.apache\.hadoop\.fs\.s3a\.\w+ not found|NoClassDefFoundError: (?:software/amazon|org/apache/hadoop/fs/s3a)"
)
_NO_SCHEME: Final = re.compile(r'No FileSystem for scheme "?(\w+)')
_NO_BUCKET: Final = re.compile(r"UnknownStoreException|NoSuchBucket|NO_SUCH_BUCKET")
_NO_LOGIN: Final = re.compile(r"NoAuthWithAWSException|NoAwsCredentialsException|Unable to load credentials")
_REFUSED: Final = re.compile(
    r"AccessDeniedException: s3a://|\(Service: S3, Status Code: 40[13]|HTTP status 403|AWS Error (?:ACCESS_DENIED"
    r"|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN)"
)
_AWAY: Final = re.compile(
    r"SdkClientException: Unable to execute HTTP request|AWS Error (?:NETWORK_CONNECTION|REQUEST_TIMEOUT)|curlCode: \d+"
    r"|AWSClientIOException"
)
_ADDRESS: Final = re.compile(r"s3[an]?://[\w.-]+")


def is_s3(location: str) -> bool:
    """Whether a location is in an object store that is reached by S3."""
    return urlsplit(location).scheme in S3_SCHEMES


def uses_s3a(catalog_config: Mapping[str, str]) -> bool:
    """Whether a catalog has its files in a bucket by S3A, and not by a file client of its own."""
    return urlsplit(catalog_config.get("warehouse", "")).scheme == "s3a" and "io-impl" not in catalog_config


def file_properties(
    location: str, spark_config: Mapping[str, str], catalog_config: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Give PyIceberg's properties for the files in the bucket of a location, from Spark's.

    `hadoop.*` of the catalog's own properties counts more than `spark.hadoop.*`, and what is said of one bucket more
    than what is said of all, as in Spark. Where Spark has no setting of S3, nothing is given.
    """
    options = _options_of(urlsplit(location).netloc, spark_config, catalog_config or {})
    if not options:
        return dict(_TIMES) if is_s3(location) else {}
    _refuse(options)
    given = {ours: options[theirs] for theirs, ours in _SAME.items() if options.get(theirs)}
    if "Anonymous" in options.get("aws.credentials.provider", ""):
        given["s3.anonymous"] = "true"
    return {**_TIMES, **given, **_endpoint(options), **_proxy(options)}


def _options_of(bucket: str, spark_config: Mapping[str, str], catalog_config: Mapping[str, str]) -> dict[str, str]:
    """Give S3A's options for a bucket, without the beginning that their names share."""
    named = [
        *((name.removeprefix(_FROM_SPARK), value) for name, value in spark_config.items() if _is_hadoops(name)),
        *((name.removeprefix(FROM_CATALOG), value) for name, value in catalog_config.items() if _is_hadoops(name)),
    ]
    options = {name.removeprefix(_S3A): value.strip() for name, value in named if name.startswith(_S3A)}
    own = f"bucket.{bucket}."
    mine = {name.removeprefix(own): value for name, value in options.items() if bucket and name.startswith(own)}
    shared = {name: value for name, value in options.items() if not name.startswith("bucket.")}
    return {**shared, **mine}


def _is_hadoops(name: str) -> bool:
    return name.startswith((_FROM_SPARK, FROM_CATALOG))


def _refuse(options: Mapping[str, str]) -> None:
    """Refuse what Arrow does not have: it would read with another login, or make nothing of the bytes."""
    providers = [one.strip() for one in options.get("aws.credentials.provider", "").split(",") if one.strip()]
    strange = [one for one in providers if one.rpartition(".")[2] not in _PROVIDERS]
    if strange:
        raise SettingsError(f"fs.s3a.aws.credentials.provider {strange[0]} works in Spark alone", hint=_SPARK_READS)
    if options.get("security.credential.provider.path"):
        raise SettingsError("fs.s3a.security.credential.provider.path works in Spark alone", hint=_SPARK_READS)
    algorithm = options.get("encryption.algorithm") or options.get("server-side-encryption-algorithm", "")
    if algorithm.upper() in _OWN_KEYS:
        raise SettingsError(f"fs.s3a.encryption.algorithm {algorithm} works in Spark alone", hint=_SPARK_READS)


def _endpoint(options: Mapping[str, str]) -> dict[str, str]:
    """Give where the server is. S3A puts the bucket before the host's name unless paths are asked for."""
    endpoint = options.get("endpoint", "")
    if not endpoint:
        return {}
    if "://" not in endpoint:
        is_plain = options.get("connection.ssl.enabled", "true").lower() == "false"
        endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
    by_path = options.get("path.style.access", "false").lower() == "true"
    # A server of one's own has a region in name only, and PyIceberg would ask AWS which one the bucket is in.
    region = {} if options.get("endpoint.region") or endpoint.endswith("amazonaws.com") else {"s3.region": "us-east-1"}
    return {"s3.endpoint": endpoint, "s3.force-virtual-addressing": str(not by_path).lower(), **region}


def _proxy(options: Mapping[str, str]) -> dict[str, str]:
    host = options.get("proxy.host", "")
    if not host:
        return {}
    if options.get("proxy.username"):
        raise SettingsError("fs.s3a.proxy.username works in Spark alone", hint=_SPARK_READS)
    port = options.get("proxy.port", "")
    scheme = "https" if options.get("proxy.ssl.enabled", "false").lower() == "true" else "http"
    return {"s3.proxy-uri": f"{scheme}://{host}{f':{port}' if port else ''}"}


def store_error(text: str, location: str = "") -> TailraceError | None:
    """Give the error of ours for what S3A, or Arrow, says of an object store; None for what is none of theirs.

    What they say holds no secret: a request is named by its id, a login by its class or the id of its key.
    """
    found = _ADDRESS.search(location) or _ADDRESS.search(text)
    where = found[0] if found else "the object store"
    if _NO_JARS.search(text):
        return SettingsError(
            f"{where}: Spark has no jars for S3",
            hint='Set spark.config: "spark.jars.packages" = "org.apache.hadoop:hadoop-aws:3.4.1", whose version is that'
            " of Hadoop in Spark (3.4.1 in PySpark 4.0).",
        )
    if scheme := _NO_SCHEME.search(text):
        return SettingsError(
            f"Spark knows no file system {scheme[1]}://",
            hint="Write s3a://bucket/folder for S3; other stores need their jars in spark.config.",
        )
    if _NO_BUCKET.search(text):
        return no_bucket(where)
    if _NO_LOGIN.search(text):
        return NotAuthorized(f"{where}: no credentials were found", hint=_LOGIN)
    if _REFUSED.search(text):
        return NotAuthorized(f"{where}: the object store refuses this key, or what it wants to do", hint=_LOGIN)
    if _AWAY.search(text):
        return ServerUnreachable(
            f"{where}: the object store does not answer",
            hint="Check spark.hadoop.fs.s3a.endpoint and fs.s3a.endpoint.region in spark.config.",
        )
    return None


def no_bucket(location: str) -> FileUnusable:
    """Give the error for a bucket that is not there."""
    found = _ADDRESS.search(location)
    where = found[0] if found else location
    return FileUnusable(f"{where}: there is no such bucket", hint="Create it first, or name another one.")


_LOGIN: Final = (
    "Check spark.hadoop.fs.s3a.access.key and fs.s3a.secret.key in spark.config, or the variables AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY; the key needs ListBucket, GetObject, PutObject and DeleteObject."
)
