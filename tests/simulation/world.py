"""One run: producers that compete for a stream, a writer, somebody who breaks things, and what must hold all the time.

Inside, as in production: `Producer`, `Attempt`, `Delivery`, `Merge` of the snapshot, `SnapshotDelivery`, `Backfill`,
`SnapshotProgress`, `Recovery` with its machine and ledger, `PositionStore`, `Leader`, `ObservedCells`, `StreamReader`,
`ByteQueue`, `Quarantine`, the fold of the inventory, the classifier, `ResumableStream` of the driver and the k-way
`Merge` of the cluster. Their time, threads, queues and events are those of the scheduler, and their I/O goes to the
models.

Not inside: the five stores themselves, the Kafka client and its transactions (a commit is one atomic step here),
formats beyond `bson`, `verify`, renames, the engine, resharding, heartbeats, the shells of the driver. They have tests
on real servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

import tailrace.capture.positions.leader as leader_module
import tailrace.capture.positions.store as store_module
import tailrace.capture.producer.attempt as attempt_module
import tailrace.capture.producer.control as control_module
import tailrace.capture.producer.delivery as delivery_module
import tailrace.capture.producer.producer as producer_module
import tailrace.capture.producer.snapshot_delivery as snapshot_delivery_module
import tailrace.capture.producer.status as status_module
import tailrace.capture.recovery.inventory as inventory_module
import tailrace.capture.recovery.recovery as recovery_module
import tailrace.capture.snapshot.backfill as backfill_module
import tailrace.capture.source.reader as byte_queue_module
import tailrace.capture.source.reader as reader_module
from simulation.models import (
    CAPTURED,
    NAMES,
    Broker,
    CellTable,
    CellView,
    Delivered,
    Faults,
    InFlight,
    Mongod,
    Producing,
    Reader,
    position_in,
    time_of,
    timestamp,
)
from simulation.scheduler import Choices, Process, Scheduler, Stuck, Substitutes, replaced
from tailrace.capture.formats import decoder_of, make_format
from tailrace.capture.positions import PositionStore
from tailrace.capture.positions.leader import Leader, margin_of
from tailrace.capture.positions.position import Position
from tailrace.capture.positions.store import Lease
from tailrace.capture.producer.control import ProducerOptions
from tailrace.capture.producer.producer import Producer
from tailrace.capture.record import Record
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.capture.recovery.inventory import KeyInventory, captured_keys
from tailrace.capture.recovery.local_inventory import NO_TIMES, Times, Unseen, nothing_unseen
from tailrace.capture.sinks import Sink, TransactionalSink
from tailrace.capture.snapshot import SnapshotProgress
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import EventSource, Selection, Start
from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.driver.commands import Batch, Scope, Step
from tailrace.driver.options import WatchOptions
from tailrace.driver.resume import ResumableStream, ResumeBudget, Steps, proceed
from tailrace.errors import Backpressure, SinkUnavailable
from tailrace.event import EventStream
from tailrace.retry import Backoff, RetryPolicy

STREAM = "orders"
LEASE_SECONDS = 4.0
TROUBLED_SECONDS = 30.0
SECONDS_TO_BE_HEALTHY = 120.0
_FORMAT = make_format("bson")


class Violation(Exception):
    """A promise that was broken."""


class World:
    """A run of one list of choices."""

    def __init__(self, choices: Choices) -> None:
        self.scheduler = scheduler = Scheduler(choices)
        self.substitutes = Substitutes(scheduler)
        self.exactly_once = choices.below(3) == 2
        self.faults = Faults(scheduler, (0, 60, 25)[choices.below(3)])
        self.server = Mongod(self.faults, 1 + choices.below(2))
        self.table = CellTable(self.faults, bool(choices.below(2)), self._judge_cell)
        self.broker = Broker(self._judge_record)
        self.outside = Process("world")
        self.processes: list[Process] = []
        self.clients: list[Producing] = []
        self.is_calm = False
        self.violation: Violation | None = None
        self._epoch = 0
        self._last: dict[tuple[object, str, int], Delivered] = {}
        self.server.is_noted = self._knows_to_be_lost
        self._first_position = ""
        self._begins = ""
        """The token behind which everything has to be delivered before the position may pass it."""

    # --- what must hold

    def _knows_to_be_lost(self, token: str) -> bool:
        """Whether the process that runs has read in the ledger that a token is dead.

        One that was stopped before it could, and sends on when it continues, cannot know.
        """
        return token.encode() in self.table.known.get((self.scheduler.process.name, f"~gaps~{STREAM}"), b"")

    def broken(self, promise: str) -> None:
        if self.violation is None:
            self.scheduler.note(f"BROKEN: {promise}")
            self.violation = Violation(promise)

    def _judge_record(self, delivered: Delivered) -> None:
        if delivered.epoch < self._epoch:
            self.broken("a record of an older holder came behind one of a newer holder")
        self._epoch = max(self._epoch, delivered.epoch)
        if delivered.key is not None:
            self._judge_order(delivered)
        if self.exactly_once and not delivered.is_row and delivered.token in self.broker.tokens:
            self.broken("an event was delivered twice, exactly once being promised")

    def _judge_order(self, delivered: Delivered) -> None:
        """Look at the records of one document from one attempt: by cluster time, rows behind what they include.

        A stream that begins one tick behind the newest operation may meet an event of that very tick behind a row as of
        it. The row has the same document, so both readings end alike: records of one time may come in either order.
        """
        place = delivered.sink, delivered.record.namespace, delivered.key
        before = self._last.get(place)
        self._last[place] = delivered
        if before is None:
            return
        if delivered.time < before.time:
            what = "a row that lacks an event" if delivered.is_row else "an older event"
            self.broken(f"{what} came behind a record of its document")

    def _judge_cell(self, name: str, cell: bytes, has_reason: bool) -> None:
        """Look at a position before others see it: everything up to it has to be in the topic, from the beginning on.

        A stream that is opened now begins one tick behind the operation time, and its first position is the mark of
        that time. The rows as of that time, or a later one, hold the events of that tick: these need not come.
        """
        if name != STREAM or (position := position_in(cell)) is None:
            return
        if not self._begins:
            self._begins = self._first_position = position
        before = self.table.cells.get(name)
        if before is not None and has_reason and position_in(before) != position:
            self._begins = position  # a first run or a recovery: what lies before is told by rows
        for entry in self.server.log:
            is_due = entry.is_captured and entry.time > time_of(self._begins) and entry.hex <= position
            if is_due and entry.hex not in self.broker.tokens:
                self.broken("the position is ahead of what was delivered")
                return

    def _judge_end(self) -> None:
        if not self.is_settled():
            self.broken("not healthy, or not equal to the source, long after the last fault")
        if self.server.sent_again:
            self.broken("a token that was answered with ChangeStreamHistoryLost was sent again")
        ledger = GapLedger(CellView(self.table), STREAM).all()
        gaps = [(gap.last_good, gap.first_known) for gap in ledger]
        for entry in self.server.log:
            if entry.is_captured and entry.hex > self._first_position and entry.hex not in self.broker.tokens:
                at = timestamp(entry.time)
                if not any((low is None or low <= at) and (high is None or at <= high) for low, high in gaps):
                    self.broken("an event is missing that lies in no gap of the ledger")

    def is_settled(self) -> bool:
        """Whether the topic equals the source, in both readings, and nothing is left to do."""
        cells = CellView(self.table)
        if self.broker.fold(by_moment=True) != self.server.captured_state():
            return False
        if self.broker.fold(by_moment=False) != self.server.captured_state():
            return False
        if SnapshotProgress(cells, STREAM).unfinished is not None or GapLedger(cells, STREAM).open_gap() is not None:
            return False
        last = max((entry.hex for entry in self.server.log if entry.is_captured), default="")
        cell = self.table.cells.get(STREAM)
        return cell is not None and (position_in(cell) or "") >= last

    # --- who takes part

    def run(self) -> None:
        """Run to the end, and raise what was broken."""
        with replaced(self._places()):
            try:
                self._run()
            except Stuck as stuck:
                self.broken(f"it goes round and round: {stuck}")
            finally:
                self.scheduler.end()
        if self.violation is not None:
            raise self.violation

    def _run(self) -> None:
        scheduler = self.scheduler
        for namespace in CAPTURED:
            for key in range(4):
                self.server.write(namespace, key, 0)
        scheduler.start(self.outside, "writer", self._write)
        scheduler.start(self.outside, "nemesis", self._break_things)
        for number in range(2):
            scheduler.start(self.outside, f"supervisor{number}", lambda number=number: self._supervise(number))
        scheduler.run(lambda: self.is_calm or self.violation is not None)
        self.faults.one_in = 0
        self.broker.is_down = False
        for process in self.processes:
            process.sleeps_until = 0.0
        deadline = scheduler.now + SECONDS_TO_BE_HEALTHY
        looked = [0.0]

        def is_over() -> bool:
            if self.violation is not None or scheduler.now > deadline:
                return True
            if scheduler.now - looked[0] < 0.5:
                return False
            looked[0] = scheduler.now
            return self._peek(self.is_settled)

        scheduler.run(is_over)
        if self.violation is None:
            self._peek(self._judge_end)

    def _peek(self, look: Callable[[], Any]) -> Any:
        """Look at what is stored from outside, where no call fails or waits."""
        point, self.scheduler.point = self.scheduler.point, lambda: None  # type: ignore[method-assign]
        try:
            return look()
        finally:
            self.scheduler.point = point  # type: ignore[method-assign]

    def _write(self) -> None:
        choices, server = self.scheduler.choices, self.server
        while True:
            self.scheduler.wait(None, 0.05 + 0.4 * choices.below(4))
            if self.is_calm:
                return
            kind = choices.below(8)
            namespace = NAMES[choices.below(3)]
            if kind == 7 and choices.below(2):
                server.drop(namespace)
            elif kind == 6:
                server.write_together(namespace, (choices.below(3), 3 + choices.below(3)))
            else:
                server.write(namespace, choices.below(6), kind % 4)

    def _break_things(self) -> None:
        scheduler, choices = self.scheduler, self.scheduler.choices
        until = scheduler.now + TROUBLED_SECONDS
        while scheduler.now < until:
            scheduler.wait(None, 0.1 + 0.7 * choices.below(5))
            kind = choices.below(10)
            living = [process for process in self.processes if not process.is_dead]
            victim = living[choices.below(len(living))] if living and kind in (4, 5, 6, 8) else None
            if kind in (4, 5) and victim:
                scheduler.note(f"kill {victim.name}")
                self._kill(victim)
            elif kind == 6 and victim:
                seconds = 1.0 + 2.5 * choices.below(4)
                scheduler.note(f"stop {victim.name} for {seconds} s")
                victim.sleeps_until = scheduler.now + seconds
            elif kind == 7 and choices.below(3) == 2:
                scheduler.note("the oplog rolls over")
                self.server.cut_history()
            elif kind == 8 and victim:
                victim.wall_offset += (choices.below(3) - 1) * 3_600.0
            elif kind == 9:
                self.broker.is_down = not self.broker.is_down
                if not self.broker.is_down:
                    self.broker.take_left_behind()
                scheduler.note(f"the broker is {'away' if self.broker.is_down else 'back'}")
        self.is_calm = True

    def _supervise(self, number: int) -> None:
        """Keep one producer running, as an init system does."""
        scheduler = self.scheduler
        if number:
            scheduler.wait(None, 0.5 + scheduler.choices.below(4))
        life = 0
        while True:
            life += 1
            process = Process(f"p{number}.{life}", wall_offset=(scheduler.choices.below(3) - 1) * 60.0)
            self.processes.append(process)
            task = scheduler.start(process, process.name, lambda process=process: self._produce(process))
            task.join()
            if task.error is not None:
                scheduler.note(f"{process.name} ended: {task.error!r}"[:150])
            self._kill(process)
            scheduler.wait(None, 0.2 + scheduler.choices.below(3))

    def _kill(self, process: Process) -> None:
        if not process.is_dead:
            self.scheduler.kill(process)
            for client in self.clients:
                if client.process is process:
                    client.ended()

    def _produce(self, process: Process) -> None:
        view = CellView(self.table)
        store = PositionStore(view, self.substitutes.wall_clock, lambda: self.scheduler.now)
        options = ProducerOptions(
            STREAM,
            lease_seconds=LEASE_SECONDS,
            flush_timeout=3.0,
            backoff=RetryPolicy(first=0.05, longest=0.8, budget=600),
            buffer_bytes=2_000,
        )
        producer: Producer

        def make_sink() -> Sink:
            lease = producer._leader.lease
            if self.exactly_once:
                return AtomicSink(self, store, view, lease.epoch)
            return LateSink(self, lease.epoch)

        producer = Producer(
            ModelSource(self), store, _FORMAT, make_sink, _no_dead_letter, ModelInventory(self), options
        )
        producer.run()

    def _places(self) -> dict[tuple[Any, str], Any]:
        """Where production's time, threads and I/O are, and what stands there during a run."""
        made, scheduler, server = self.substitutes, self.scheduler, self.server
        timed = (producer_module, attempt_module, delivery_module, snapshot_delivery_module, status_module,
                 store_module, backfill_module)  # fmt: skip
        return {
            **{(module, "time"): made.time for module in timed},
            **{(module, "threading"): made.threading
               for module in (control_module, byte_queue_module, inventory_module, status_module, store_module,
                              leader_module)},
            **{(module, "OwnedThread"): made.thread
               for module in (reader_module, backfill_module, inventory_module, leader_module)},
            (backfill_module, "SimpleQueue"): _Maker(made.queue),
            (inventory_module, "Queue"): _Maker(made.queue),
            (backfill_module, "ChunkReader"): Reader,
            (backfill_module, "watermark"): lambda _: server.operation_time(),
            (recovery_module, "captured_collections"): lambda *_: server.names(),
            (recovery_module, "captured_uuids"): lambda *_: {},
            (recovery_module, "plan_collection"): lambda _, name, *__: server.plan(name),
            (recovery_module, "estimated_documents"): lambda *_: 0,
            (leader_module, "this_process"): lambda: scheduler.process.name,
            (store_module, "has_ended"): lambda owner: self._is_known_dead(owner),
            (Leader.__init__, "__defaults__"): (lambda: scheduler.now,),
            (Backoff.__init__, "__kwdefaults__"): {"clock": lambda: scheduler.now, "chance": lambda: 0.5},
            (RetryPolicy.pause, "__defaults__"): (lambda: 0.5,),
        }  # fmt: skip

    def _is_known_dead(self, owner: str) -> bool:
        """On one machine a producer knows that another has ended; half of the runs are on two."""
        if self.table.has_clock:
            return False
        return any(process.name == owner and process.is_dead for process in self.processes)


class _Maker:
    """A class for queues, which are annotated with their items in production."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __getitem__(self, _: object) -> _Maker:
        return self


def _no_dead_letter(event: bytes, error: Exception) -> None:
    raise error


# --- the ends of a producer


class ModelSource(EventSource):
    """Streams of the model server, resumed by the driver's own rules."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server, Selection(Namespaces.parse(CAPTURED)))  # type: ignore[arg-type]
        self._world = world

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        return ModelStream(self._world, start)

    def operation_time(self) -> Timestamp:
        return self._world.server.operation_time()


class ModelStream:
    """A thin shell around `ResumableStream`, as `ChangeStream` is."""

    def __init__(self, world: World, start: Start) -> None:
        options = WatchOptions(start_after=start.token, start_at_operation_time=None if start.token else start.time)
        budget = ResumeBudget(None, lambda: world.scheduler.now, lambda: 0.5)
        self._world = world
        self._stream = ResumableStream(Scope.of_cluster(), [], options, budget)
        self._perform(self._stream.open())

    def batches(self) -> Iterator[Batch]:
        while self._stream.alive:
            self._perform(self._stream.advance())
            yield self._stream.take_batch()

    def close(self) -> None:
        self._stream.close()

    def _perform(self, steps: Steps) -> None:
        outcome: Reply | PyMongoError | None = None
        while (step := proceed(steps, outcome)) is not None:
            try:
                outcome = self._carry_out(step)
            except PyMongoError as error:
                outcome = error

    def _carry_out(self, step: Step) -> Reply | None:
        server, scheduler = self._world.server, self._world.scheduler
        if isinstance(step, GetMore):
            scheduler.wait(None, 0.02 + 0.1 * scheduler.choices.below(3))
            return server.get_more(step)
        if isinstance(step, Aggregate):
            return server.aggregate(step)[1]
        scheduler.wait(None, step.seconds)
        return None


class ModelInventory(KeyInventory):
    """Reads the topic back."""

    description = "the topic"

    def __init__(self, world: World) -> None:
        self._world = world

    def keys(self, unseen: Unseen = nothing_unseen, lost: Times = NO_TIMES) -> Iterator[tuple[str, bytes]]:
        broker = self._world.broker
        self._world.scheduler.wait(lambda: not broker.is_down, None)
        broker.take_left_behind()
        yield from list(captured_keys(broker.messages, decoder_of("bson"), CAPTURED.__contains__, unseen, lost))


class LateSink(Sink):
    """At least once: what was added arrives in order, some time, or is given up within the margin of the lease."""

    def __init__(self, world: World, epoch: int) -> None:
        self._world = world
        self._epoch = epoch
        self._added = 0
        self._told = 0
        self._sending = Producing(world.broker, world.scheduler, world.scheduler.process)
        world.clients.append(self._sending)

    def setup(self) -> None:
        self._world.faults.before("sink setup", lambda: SinkUnavailable("nobody answers"))
        self._world.scheduler.start(self._world.outside, "client", self._sending.run)

    def add(self, records: Sequence[Record]) -> int:
        self._world.faults.before("add", lambda: Backpressure("full", retry_after=0.05))
        until = self._world.scheduler.now + margin_of(LEASE_SECONDS)
        self._sending.on_its_way.extend(InFlight(record, self._epoch, self, until) for record in records)
        self._added += len(records)
        return self._added

    def acknowledged(self) -> int:
        if self._sending.has_failed:
            raise SinkUnavailable("records were given up")
        if not self._world.faults.happens(3):  # acknowledgements may be late
            self._told = self._sending.arrived
        return self._told

    def flush(self, timeout: float) -> int:
        sending = self._sending
        self._world.scheduler.wait(lambda: sending.arrived >= self._added or sending.has_failed, timeout)
        if sending.arrived < self._added:
            raise SinkUnavailable("not acknowledged in time")
        self._told = sending.arrived
        return self._told

    def close(self) -> None:
        """Send nothing more; what was sent already lies in the broker's sockets, before all that comes later."""
        self._sending.ended()


class AtomicSink(TransactionalSink):
    """Exactly once: records become visible with the position, in one step of the store."""

    def __init__(self, world: World, store: PositionStore, view: CellView, epoch: int) -> None:
        self._world = world
        self._store = store
        self._view = view
        self._epoch = epoch
        self._records: list[Record] = []
        self._added = self._done = 0

    def setup(self) -> None:
        self._world.faults.before("sink setup", lambda: SinkUnavailable("nobody answers"))

    def add(self, records: Sequence[Record]) -> int:
        self._world.faults.before("add", lambda: Backpressure("full", retry_after=0.05))
        self._records.extend(records)
        self._added += len(records)
        return self._added

    def acknowledged(self) -> int:
        return self._done

    def flush(self, timeout: float) -> int:
        return self._done

    def commit(self, position: Position, lease: Lease) -> Lease:
        records, self._records = self._records, []
        if self._world.broker.is_down:
            raise SinkUnavailable("the broker is away")

        def show() -> None:
            for record in records:
                self._world.broker.append(record, self._epoch, self)

        self._view.carried = show
        try:
            renewed = self._store.save(position, lease)
        finally:
            self._view.carried = None
        self._done = self._added
        return renewed

    def close(self) -> None:
        self._records.clear()


# --- runs


def run_seed(seed: int, replayed: Sequence[int] | None = None) -> tuple[Violation | None, World]:
    """Run one seed, or one list of choices; gives what was broken, if anything was."""
    world = World(Choices(seed, replayed))
    try:
        world.run()
    except Violation as violation:
        return violation, world
    return None, world


def shrunk(seed: int, made: Sequence[int], most_runs: int = 200) -> tuple[list[int], World]:
    """Look for a simpler list of choices that breaks something too: shorter, and with more zeros."""
    best = list(made)
    _, world = run_seed(seed, best)
    size = len(best)
    runs = 0
    while size and runs < most_runs:
        place = 0
        while place < len(best) and runs < most_runs:
            part = best[place : place + size]
            before, behind = best[:place], best[place + size :]
            for tried in (before, before + behind, [*before, *(0 for _ in part), *behind]):
                if tried == best:
                    continue
                runs += 1
                violation, again = run_seed(seed, tried)
                if violation is not None and (len(tried), sum(map(bool, tried))) < (len(best), sum(map(bool, best))):
                    best, world = tried, again
                    break
            else:
                place += size
        size //= 2
    while best and best[-1] == 0:
        best.pop()
    return best, world
