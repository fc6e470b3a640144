"""A stream remembers the policy it ran under last, so that a changed one is written down."""

from __future__ import annotations

import hmac
from typing import Any, Final

from tailrace.audit.audit_log import Actor, AuditLog
from tailrace.capture.positions.side_cell import SideCell
from tailrace.capture.positions.store import PositionStore
from tailrace.settings import Settings

_KIND: Final = "policy"


def record_policy_change(audit: AuditLog, store: PositionStore, settings: Settings, actor: Actor) -> None:
    """Write down how the policy of a stream differs from the one of its last run; a first policy is a change too."""
    stream = settings.capture.name
    cell = SideCell(store.cells, _KIND, stream)
    before, now = cell.read() or {"rules": []}, _described(settings)
    if before == now or (not now["rules"] and not before["rules"]):
        return
    audit.record(actor, "policy changed", stream, before=before, after=now)
    cell.update(lambda _: now)


def _described(settings: Settings) -> dict[str, Any]:
    """Give the rules, and a fingerprint of the key from which nobody can tell the key."""
    rules = [rule.model_dump(mode="json", exclude_none=True) for rule in settings.policy.rules]
    key = settings.policy.key
    if key is None:
        return {"rules": rules}
    mark = hmac.digest(key.get_secret_value().encode(), b"tailrace policy key", "sha256").hex()[:12]
    return {"rules": rules, "fingerprint": mark}
