"""What a comparison found, as a report that can be attached to an issue: by kind, with the evidence."""

from __future__ import annotations

from typing import Any

from tailrace.proof.ledger import TrustLedger


def as_json(ledger: TrustLedger, *, seconds: float, failures: int) -> dict[str, Any]:
    """Give the whole report; the evidence is base64 of BSON."""
    kinds = ledger.kinds()
    return {
        "server": ledger.server,
        "seconds": round(seconds, 1),
        "identical": sum(record.identical for record in kinds.values()),
        "different": sum(record.different for record in kinds.values()),
        "failures": failures,
        "kinds": [
            {"kind": kind.name, "shape": kind.shape, "identical": record.identical, "different": record.different}
            for kind, record in sorted(kinds.items(), key=lambda each: each[0].key)
        ],
        "differences": [difference.to_json() for difference in ledger.differences],
    }


def as_text(report: dict[str, Any]) -> str:
    """Give the report for a person: one line per operation and kind of namespace, then what is different."""
    totals: dict[str, list[int]] = {}
    for each in report["kinds"]:
        counts = totals.setdefault(each["kind"], [0, 0, 0])
        counts[0] += each["identical"]
        counts[1] += each["different"]
        counts[2] += 1
    lines = [f"MongoDB {report['server']}, {report['seconds']:g} s"]
    lines += [
        f"  {kind:<22} {identical:>9,} identical  {different:>6,} different  ({shapes} shapes)"
        for kind, (identical, different, shapes) in totals.items()
    ]
    lines += [f"different: {each['message']}" for each in report["differences"]]
    if report["failures"]:
        lines.append(f"the engine's stream failed {report['failures']} times; the log says why")
    if not report["identical"] + report["different"]:
        lines.append("nothing was written meanwhile, so nothing was compared")
    return "\n".join([*lines, f"{report['identical']:,} identical, {report['different']:,} different"])
