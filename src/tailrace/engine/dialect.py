"""What differs between the servers whose oplogs the engine reads.

Every fact here was seen on a real server, but for those marked *by reading*: of 8.0 and later there is none to ask, so
they are from its public sources and documentation, and the engine serves nothing there that it has not matched
(`tailrace.proof`). A dialect is asked what to do, never for its version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tailrace.errors import StreamRefused

OLDEST = (4, 2, 0)
"""The oldest server whose oplog is understood."""
COMPARED = frozenset({(4, 2), (4, 4), (5, 0), (6, 0), (7, 0)})
"""Releases whose tokens and events were compared with the engine's; no release between them was, and no vendor's build
(`7.0.28-15`), which says so by what stands behind the numbers."""
_AFTER_6_0_5 = (6, 0, 6)
"""Where 6.0.5 and 6.0.27 differ, the releases between them are taken to be like the newer one."""


@dataclass(frozen=True)
class Dialect:
    """The habits of one server version, by its `major, minor, patch`."""

    version: tuple[int, int, int]

    @classmethod
    def of(cls, version: str) -> Dialect:
        """Read a version as `buildInfo` gives it; one that was never compared is refused."""
        dialect = cls.nearest(version)
        if not is_compared(version):
            raise StreamRefused(
                f"the engine's events were never compared with those of a MongoDB {version} server",
                hint="Use the server's own stream (--source change-stream); `tailrace produce --source oplog` and "
                "`tailrace serve` let the engine prove itself beside it, and `tailrace engine prove` reports.",
            )
        return dialect

    @classmethod
    def nearest(cls, version: str) -> Dialect:
        """Read a version, also one that was never compared: its habits are taken to be those of the last before it."""
        numbers = version.split("-")[0].split(".")
        try:
            major, minor, patch = (int(number) for number in (*numbers, "0", "0")[:3])
        except ValueError:
            raise StreamRefused(f"{version!r} is not the version of a server") from None
        if (major, minor, patch) < OLDEST:
            raise StreamRefused(f"the oplog of a MongoDB {version} server is not understood")
        return cls((major, minor, patch))

    def __str__(self) -> str:
        return ".".join(str(number) for number in self.version)

    def since(self, *version: int) -> bool:
        """Tell whether the server is of this version or a later one."""
        return self.version >= version

    # --- events

    @cached_property
    def has_wall_time(self) -> bool:
        """Events carry the primary's wall clock."""
        return self.since(6, 0)

    @cached_property
    def has_disambiguated_paths(self) -> bool:
        """Expanded updates tell `a.b` of a field with a dot from `a.b` of a nested field."""
        return self.since(6, 1)

    @cached_property
    def logs_batches_of_writes(self) -> bool:
        """Writes without a transaction may be logged together, as one `applyOps` without a session."""
        return self.since(7, 0)

    @cached_property
    def shows_index_builds(self) -> bool:
        """`showSystemEvents` shows where an index build starts, but not where it is aborted."""
        return self.since(7, 0)

    @cached_property
    def counts_view_catalog_as_system(self) -> bool:
        """`showSystemEvents` shows `system.views` too: its making and dropping, and dropped views."""
        return self.since(*_AFTER_6_0_5)

    @cached_property
    def shows_new_shard_to_all(self) -> bool:
        """A shard shows `kNewShardDetected` on every stream, not only to a router."""
        return not self.since(6, 0)

    @cached_property
    def closes_for_routers(self) -> bool:
        """An invalidate ends a stream that a router reads, too; before, the router closes it."""
        return self.since(6, 0)

    @cached_property
    def sort_key_is_array(self) -> bool:
        """`$sortKey`, which a router asks for, is an array of one (4.2: the token itself)."""
        return self.since(4, 4)

    @cached_property
    def logs_keys_of_inserts(self) -> bool:
        """An insert is logged with its documentKey; before, the shard key comes from the catalog."""
        return self.since(6, 0)

    @cached_property
    def names_namespace_types(self) -> bool:
        """By reading (8.0.5): an expanded `create` says at its end what was made, as `nsType`."""
        return self.since(8, 0, 5)

    # --- tokens

    @cached_property
    def default_token_version(self) -> int:
        """The version of the tokens that a stream gets when nobody asks for another one."""
        return 2 if self.since(7, 0) else 1

    @cached_property
    def newest_token_version(self) -> int:
        """The newest token version the server reads."""
        return 2 if self.since(6, 0) else 1

    @cached_property
    def keeps_token_version(self) -> bool:
        """Until the position is passed, events get tokens of the client's version."""
        return self.since(6, 0)

    @cached_property
    def keeps_version_of_marks(self) -> bool:
        """It does so for a client that comes with a bare high-water mark, too."""
        return self.keeps_token_version and not self.since(7, 0)

    @cached_property
    def refuses_to_be_asked_for_version_2(self) -> bool:
        """`$_generateV2ResumeTokens` may only be false: version 2 is what there is."""
        return self.since(7, 0)

    @cached_property
    def keeps_token_version_by_operation(self) -> bool:
        """The position ends with the operation in its transaction, not with the transaction."""
        return self.since(*_AFTER_6_0_5)

    @cached_property
    def keeps_version_2(self) -> bool:
        """A client that comes with a token of version 2 gets tokens of version 2 for good."""
        return self.since(*_AFTER_6_0_5)

    @cached_property
    def splits_large_events(self) -> bool:
        """`$changeStreamSplitLargeEvent` exists."""
        return self.since(6, 0, 9)

    @cached_property
    def ends_at_invalidate(self) -> bool:
        """The last position of an invalidated stream is the invalidate, even when a filter dropped it."""
        return self.since(6, 0)

    @cached_property
    def finds_position_last(self) -> bool:
        """The position is looked for behind images and the user's filter: resuming at an event that the
        filter drops fails. Before 6.0 it is looked for first.
        """
        return self.since(6, 0)

    # --- images

    @cached_property
    def stores_pre_images(self) -> bool:
        """Pre-images are in `config.system.preimages`; 4.4 and 5.0 have them in the oplog."""
        return self.since(6, 0)

    @cached_property
    def looks_up_by_name(self) -> bool:
        """`updateLookup` reads the collection that has the name now, unless told to match its UUID."""
        return self.since(*_AFTER_6_0_5)

    # --- errors

    @cached_property
    def first_batch_prefix(self) -> str:
        """What stands before the message of an error that came while the first batch was read."""
        return "PlanExecutor error during aggregation :: caused by :: " if self.since(5, 0) else ""

    @cached_property
    def next_batch_prefix(self) -> str:
        """What stands before the message of an error that came while a later batch was read."""
        return "Executor error during getMore :: caused by :: " if self.since(5, 0) else ""

    @cached_property
    def names_unknown_fields(self) -> bool:
        """The error for an option that does not exist has a name."""
        return self.since(*_AFTER_6_0_5)


def is_compared(version: str) -> bool:
    """Tell whether the events of this server's release were compared with the engine's, on a real one."""
    numbers = version.split(".")
    return len(numbers) == 3 and all(n.isdigit() for n in numbers) and (int(numbers[0]), int(numbers[1])) in COMPARED
