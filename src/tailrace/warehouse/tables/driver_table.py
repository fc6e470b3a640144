"""An Iceberg table as the driver writes it itself, without a Spark job: Parquet by Arrow, commits by Iceberg's classes.

Iceberg plans, validates and commits in the driver's JVM, for any catalog: such a commit and one of Spark's are alike.
Only files of local folders are read and written by Python itself; all others go through the table's own `FileIO`.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from tailrace.warehouse.tables.conflicts import conflicts
from tailrace.warehouse.tables.deletion_vectors import decoded, puffin

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "decimal(38, 18)": pa.decimal128(38, 18),
    "string": pa.string(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}
_CODEC: Final = "write.parquet.compression-codec"
SNAPSHOTS_KEPT: Final = 10
"""The newest snapshots always stay: among them is the one that says which batch was the last."""


class NeedsSpark(Exception):
    """The driver cannot write this; nothing of it was written."""

    def __init__(self, cause: str, *, is_lasting: bool = False) -> None:
        """`is_lasting` says that it is because of the table, so that the next batch would fare alike."""
        super().__init__(cause)
        self.is_lasting = is_lasting


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of the newest snapshot, with the deletion vector it has."""

    path: str
    rows: int
    java: Any
    vector: Any = None
    """Iceberg's own object; None when no row is gone."""
    partition: str | None = None
    """As a path, such as `cluster_time_day=2024-05-01`."""


@dataclass(frozen=True, slots=True)
class Range:
    """Values of a column, both ends included."""

    column: str
    least: str
    greatest: str


class DriverTable:
    """One table, opened once."""

    def __init__(self, jvm: Any, java: Any) -> None:
        self._jvm = jvm
        self._java = java
        iceberg = jvm.org.apache.iceberg
        # Each part of such a name is a question to the JVM, which looks through all jars for it.
        self._data_files, self._delete_files = iceberg.DataFiles, iceberg.FileMetadata
        self._file_metrics = iceberg.parquet.ParquetUtil.fileMetrics
        self._metrics_config = iceberg.MetricsConfig.forTable
        self._schema_json = iceberg.SchemaParser.toJson
        self._expressions = iceberg.expressions.Expressions
        self._schema: tuple[int, pa.Schema] | None = None

    def refresh(self) -> int | None:
        """Look for new snapshots; gives the newest."""
        self._java.refresh()
        return self.snapshot

    @property
    def snapshot(self) -> int | None:
        """The newest snapshot that is known here."""
        snapshot = self._java.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    @property
    def schema(self) -> pa.Schema:
        """The columns, with the ids by which Iceberg knows them."""
        java = self._java.schema()
        number = int(java.schemaId())
        if self._schema is None or self._schema[0] != number:
            self._schema = number, pa.schema(_fields(json.loads(self._schema_json(java))))
        return self._schema[1]

    @property
    def partition(self) -> str | None:
        """The name of the one partition field; None when there is none."""
        fields = self._java.spec().fields()
        if len(fields) > 1:
            raise NeedsSpark("a table with several partition fields", is_lasting=True)
        return str(fields[0].name()) if len(fields) else None

    def has_batch(self, query: str, batch: int) -> bool:
        """Tell whether a batch, or a later one of its query, is in the newest snapshot that is known here."""
        return has_batch(self._java, query, batch)

    # --- reading

    def files(self) -> Iterator[DataFile]:
        """Give the files of the newest snapshot that is known here."""
        yield from self._planned(self._java.newScan())

    def files_since(self, column: str, least: str) -> Iterator[DataFile]:
        """Give those that may have values as great as this, by metadata alone."""
        yield from self._planned(self._java.newScan().filter(self._expressions.greaterThanOrEqual(column, least)))

    def files_between(self, inside: Range) -> list[str]:
        """Give the files that may have values in a range, by metadata alone."""
        return [one.path for one in self._planned(self._java.newScan().filter(self._inside(inside)))]

    def _inside(self, inside: Range) -> Any:
        least = self._expressions.greaterThanOrEqual(inside.column, inside.least)
        return getattr(self._expressions, "and")(
            least, self._expressions.lessThanOrEqual(inside.column, inside.greatest)
        )

    def _planned(self, scan: Any) -> Iterator[DataFile]:
        tasks = scan.planFiles()
        try:
            each = tasks.iterator()
            while each.hasNext():
                task = each.next()
                file, deletes = task.file(), task.deletes()
                if len(deletes) > 1 or (len(deletes) and deletes[0].contentOffset() is None):
                    raise NeedsSpark("a file with deletes that are no deletion vector", is_lasting=True)
                vector = deletes[0] if len(deletes) else None
                yield DataFile(str(file.location()), int(file.recordCount()), file, vector, self._partition_of(file))
        finally:
            tasks.close()

    def _partition_of(self, file: Any) -> str | None:
        spec = self._java.spec()
        return None if spec.isUnpartitioned() else str(spec.partitionToPath(file.partition()))

    def vector(self, file: DataFile) -> BitMap:
        """Read which rows of a file are gone."""
        if file.vector is None:
            return BitMap()
        opened = self.open(str(file.vector.location()))
        with opened:
            opened.seek(int(file.vector.contentOffset()))
            return decoded(opened.read(int(file.vector.contentSizeInBytes())))

    def open(self, path: str) -> Any:
        """Open a file for reading."""
        local = local_path(path)
        if local is not None:
            return pa.memory_map(str(local))
        return pa.PythonFile(RemoteFile(self._jvm, self._java.io().newInputFile(path)), "r")

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open a data file."""
        return pq.ParquetFile(self.open(path))

    def rows_of(self, path: str, schema: pa.Schema) -> pa.Table:
        """Read a data file with the columns of a newer schema: those it lacks are null, narrower ones are widened."""
        rows = self.parquet(path).read()
        columns = []
        for wanted in schema:
            number = rows.schema.get_field_index(wanted.name)
            if number < 0:
                columns.append(pa.nulls(rows.num_rows, wanted.type))
                continue
            if _id(rows.schema.field(number)) != _id(wanted):
                raise NeedsSpark(f"a file whose column {wanted.name} is another one")
            columns.append(rows.column(number).cast(wanted.type))
        return pa.Table.from_arrays(columns, schema=schema)

    # --- writing

    def write_rows(self, rows: pa.Table, partition_path: str | None = None) -> DataFile:
        """Write rows, which have the columns of the schema, into a new data file that no snapshot knows yet."""
        sink = io.BytesIO()
        codec = str(self._java.properties().get(_CODEC) or "zstd")
        pq.write_table(
            rows,
            sink,
            compression="none" if codec == "uncompressed" else codec,
            use_dictionary=False,
            store_schema=False,
            row_group_size=max(1, rows.num_rows),
        )
        data = sink.getvalue()
        path = self._write(data, "parquet")
        builder = self._data_files.builder(self._java.spec()).withPath(path).withFormat("PARQUET")
        metrics = self._file_metrics(self._java.io().newInputFile(path), self._metrics_config(self._java))
        builder = builder.withFileSizeInBytes(len(data)).withMetrics(metrics)
        if partition_path is not None:
            builder = builder.withPartitionPath(partition_path)
        return DataFile(path, rows.num_rows, builder.build(), None, partition_path)

    def write_vectors(self, vectors: Mapping[str, BitMap]) -> dict[str, Any]:
        """Write which rows of some data files are gone; gives Iceberg's object for each."""
        if not vectors:
            return {}
        data, blobs = puffin(vectors)
        path = self._write(data, "puffin")
        made = {}
        for blob in blobs:
            builder = self._delete_files.deleteFileBuilder(self._java.spec()).ofPositionDeletes()
            builder = builder.withFormat("PUFFIN").withPath(path).withFileSizeInBytes(len(data))
            builder = builder.withReferencedDataFile(blob.data_file).withContentOffset(blob.offset)
            made[blob.data_file] = builder.withContentSizeInBytes(blob.size).withRecordCount(blob.rows).build()
        return made

    def append(
        self, files: Sequence[DataFile], properties: Mapping[str, str], since: int | None, inside: Range
    ) -> int | None:
        """Add files, in one commit; fails when somebody else has added rows inside a range after `since`.

        Gives the new snapshot, or None when there are others between the two.
        """
        if not files:  # a change of nothing is called an overwrite, and streams that read the table refuse that
            return self._commit(self._java.newAppend(), properties, since)
        update = self._java.newRowDelta().conflictDetectionFilter(self._inside(inside))
        for file in files:
            update = update.addRows(file.java)
        return self._commit_after(update.validateNoConflictingDataFiles(), properties, since)

    def change(
        self,
        added: Sequence[DataFile],
        vectors: Mapping[str, Any],
        replaced: Iterable[Any],
        properties: Mapping[str, str],
        since: int | None,
    ) -> int | None:
        """Add rows and let others leave, in one commit.

        Fails when after `since` somebody else has added rows, of which some may be those of the same documents, or has
        changed a file that loses rows. Gives the new snapshot, or None when there are others between the two.
        """
        update = self._java.newRowDelta().validateNoConflictingDataFiles()
        for file in added:
            update = update.addRows(file.java)
        for vector in vectors.values():
            update = update.addDeletes(vector)
        for vector in replaced:
            update = update.removeDeletes(vector)
        if vectors:
            update = update.validateDataFilesExist(list_(self._jvm, vectors))
            update = update.validateDeletedFiles().validateNoConflictingDeleteFiles()
        return self._commit_after(update, properties, since)

    def rewrite(
        self,
        old: Sequence[DataFile],
        new: DataFile | None,
        vectors: Sequence[Any],
        properties: Mapping[str, str],
        since: int | None,
    ) -> int | None:
        """Put a file in the place of others; fails when one of these has changed after `since`.

        Gives the new snapshot, or None when there are others between the two.
        """
        update = self._java.newRewrite()
        for file in old:
            update = update.deleteFile(file.java)
            if file.vector is not None:
                update = update.deleteFile(file.vector)
        if new is not None:
            update = update.addFile(new.java)
        for vector in vectors:
            update = update.addFile(vector)
        return self._commit_after(update, properties, since)

    def expire(self, keep_hours: float) -> None:
        """Remove snapshots older than this, and the files only they need.

        They are named one by one: without names Iceberg 1.11 cleans up by what left each snapshot, and removes a file
        of deletion vectors as soon as one of them was replaced, while others in it are in use. What somebody has given
        a name (a tag or a branch) stays.
        """
        before = int((time.time() - keep_hours * 3600) * 1000)
        kept = {int(entry.snapshotId()) for entry in list(self._java.history())[-SNAPSHOTS_KEPT:]}
        kept |= {int(named.snapshotId()) for named in dict(self._java.refs()).values()}
        known = ((int(one.snapshotId()), int(one.timestampMillis())) for one in self._java.snapshots())
        old = [number for number, at in known if at < before and number not in kept]
        if old:
            update = self._java.expireSnapshots()
            for number in old:
                update = update.expireSnapshotId(number)
            update.commit()

    def _commit_after(self, update: Any, properties: Mapping[str, str], since: int | None) -> int | None:
        """Commit what is checked against everything after a snapshot."""
        return self._commit(update if since is None else update.validateFromSnapshot(since), properties, since)

    def _commit(self, update: Any, properties: Mapping[str, str], since: int | None) -> int | None:
        """Commit, and give the new snapshot when it is the next one after `since`.

        What conflicts with nothing may come between, so whoever keeps an account of the files has to look again.
        """
        for key, value in properties.items():
            update = update.set(key, value)
        with conflicts():
            update.commit()
        newest = self._java.currentSnapshot()
        return int(newest.snapshotId()) if newest.parentId() == since else None

    def _write(self, data: bytes, suffix: str) -> str:
        path = str(self._java.locationProvider().newDataLocation(f"{uuid.uuid4()}.{suffix}"))
        local = local_path(path)
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
            try:
                local.write_bytes(data)
            except OSError:
                local.unlink(missing_ok=True)  # each try on a full disk would leave a part of a file
                raise
            return path
        stream = self._java.io().newOutputFile(path).create()
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        return path


class RemoteFile(io.RawIOBase):
    """A file that Iceberg reads for us."""

    def __init__(self, jvm: Any, java: Any) -> None:
        super().__init__()
        self._read = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._size = int(java.getLength())
        self._position = 0
        self._stream = java.newStream()

    def seekable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = begin + offset
        self._stream.seek(self._position)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes, or what is left."""
        left = self._size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        data = bytes(self._read(self._stream, wanted)) if wanted > 0 else b""
        self._position += len(data)
        return data

    def close(self) -> None:
        """Close the stream behind it."""
        if not self.closed:
            self._stream.close()
        super().close()


def has_batch(java: Any, query: str, batch: int) -> bool:
    """Tell whether a batch is in a table: its own snapshot, or one of a later batch of its query, is in its past."""
    snapshot = java.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get("tailrace.query") == query and (known := summary.get("tailrace.batch")) is not None:
            return int(known) >= batch
        parent = snapshot.parentId()
        snapshot = None if parent is None else java.snapshot(parent)
    return False


def local_path(path: str) -> Path | None:
    """Give a file of this machine; None for one that is elsewhere."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return Path(path) if path.startswith("/") else None


def list_(jvm: Any, items: Iterable[str]) -> Any:
    """Give a list of Java."""
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(b"PARQUET:field_id")


def _fields(struct: Mapping[str, Any]) -> list[pa.Field]:
    return [_field(one["name"], one["type"], one["id"]) for one in struct["fields"]]


def _field(name: str, kind: Any, number: int) -> pa.Field:
    return pa.field(name, _type(kind), metadata={"PARQUET:field_id": str(number)})


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if kind not in _PLAIN:
            raise NeedsSpark(f"a column of the type {kind}", is_lasting=True)
        return _PLAIN[kind]
    if kind["type"] == "struct":
        return pa.struct(_fields(kind))
    if kind["type"] == "list":
        return pa.list_(_field("element", kind["element"], kind["element-id"]))
    raise NeedsSpark(f"a column of the type {kind['type']}", is_lasting=True)
