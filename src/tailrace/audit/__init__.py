"""What people did to a running system: positions set, recoveries, pauses, changed policies; with who and from where.

Belongs here: the log of such actions and where it is kept. Does not: the log of what the program did by itself
(`structlog`), and the history of a position, which its store keeps with it.
"""

from tailrace.audit.audit_log import Actor, AuditLog, open_audit, record_policy_change

__all__ = ["Actor", "AuditLog", "open_audit", "record_policy_change"]
