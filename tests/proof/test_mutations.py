"""Whatever an engine gets wrong, nobody is handed an event that the server would not have given."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.mutations import DIALECT, OUTPUT, mutated
from proof.recorded_sides import EngineSide, ServerSide, recording_of
from tailrace.capture.source.proving import ProofOptions, ProvingStream, Side
from tailrace.capture.source.source import Start
from tailrace.proof import MARK, Trust, TrustLedger

STREAM = "cluster:expanded"
VERSIONS = ["6.0.5", "7.0.28"]
OPTIONS = ProofOptions(matches=3, sample_one_in=0)


class Run:
    """One reading of a recorded stream to its end, by a stream that proves the engine."""

    def __init__(self, recordings: Path, version: str, engine: EngineSide, ledger: TrustLedger | None = None) -> None:
        recording = recording_of(recordings, version)
        recorded = recording.streams["", STREAM]
        self.server = [recorded.events[n] for n in sorted(recorded.events)]
        self.ledger = ledger or TrustLedger(version, OPTIONS.matches)
        start = Start(time=recorded.command["pipeline"][0]["$changeStream"]["startAtOperationTime"])
        side = ServerSide(self.server, recording.dialect.default_token_version, start)
        stream = ProvingStream(start, side.open, engine.open, self.ledger, OPTIONS)
        self.events: list[bytes] = []
        self.from_engine = 0
        for batch in stream.batches():
            self.events += batch.events
            self.from_engine += len(batch.events) if stream.side is Side.ENGINE else 0
        stream.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_that_is_right_takes_over(recordings, version):
    run = Run(recordings, version, EngineSide(recording_of(recordings, version), STREAM))
    assert run.events == run.server
    assert run.from_engine > 100
    assert run.ledger.by_trust()[Trust.DISTRUSTED] == 0


@pytest.mark.parametrize("mutation", OUTPUT)
def test_no_mutated_event_is_handed_out(recordings, mutation):
    version = "6.0.5" if mutation == "disambiguated paths where none belong" else "7.0.28"
    engine = EngineSide(recording_of(recordings, version), STREAM, mutate=OUTPUT[mutation])
    run = Run(recordings, version, engine)
    assert engine.mutated
    assert run.events == run.server
    assert run.ledger.has_doubts
    assert run.ledger.differences


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mutation", DIALECT)
def test_no_event_of_a_wrong_dialect_is_handed_out(recordings, version, mutation):
    recording = recording_of(recordings, version)
    habits = DIALECT[mutation]
    if all(getattr(recording.dialect, name) == value for name, value in habits.items()):
        pytest.skip(f"that is what {version} does")
    run = Run(recordings, version, EngineSide(recording, STREAM, mutated(recording.dialect, habits)))
    assert run.events == run.server
    assert run.ledger.has_doubts


def test_a_difference_is_for_good(recordings):
    """A ledger that was saved keeps its doubts, for the same build alone."""
    saved = []
    ledger = TrustLedger("7.0.28", OPTIONS.matches, save=saved.append)
    engine = EngineSide(recording_of(recordings, "7.0.28"), STREAM, mutate=OUTPUT["document of an insert missing"])
    Run(recordings, "7.0.28", engine, ledger)
    again = TrustLedger("7.0.28", OPTIONS.matches, saved=saved[-1])
    distrusted = {kind for kind in again.kinds() if again.trust(kind) is Trust.DISTRUSTED}
    assert {kind.operation for kind in distrusted} == {"insert"}
    assert again.trusts(MARK)
    other = TrustLedger("7.0.29", OPTIONS.matches, saved=saved[-1])
    assert not other.kinds()
    right = Run(recordings, "7.0.28", EngineSide(recording_of(recordings, "7.0.28"), STREAM), again)
    assert right.events == right.server, "and the kind goes on coming from the server, although the engine is right now"
    assert all(again.trust(kind) is Trust.DISTRUSTED for kind in distrusted)
