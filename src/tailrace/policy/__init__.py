"""Field policy: which fields of which collections leave the process, and in what shape.

Belongs here: matching paths (`paths`), changing values (`actions`), both applied to a change event (`policy`).
Does not: where events come from and go to; those who let events out call `Policy.event` once, before anything else.
"""

from tailrace.policy.actions import Action, Kind
from tailrace.policy.paths import Rule
from tailrace.policy.policy import NO_POLICY, CompiledPolicy, Policy, stripped

__all__ = ["NO_POLICY", "Action", "CompiledPolicy", "Kind", "Policy", "Rule", "stripped"]
