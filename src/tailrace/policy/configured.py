"""From the section `[policy]` of the settings to a policy; what could not protect anything is refused here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tailrace.errors import SettingsError
from tailrace.policy.actions import Action, Kind
from tailrace.policy.paths import Rule
from tailrace.policy.policy import Policy
from tailrace.settings import PolicyRuleSettings, Settings

_ONLY: Final = "only"
_LEAST_KEY_BYTES: Final = 16
_FILTERING_STAGES: Final = frozenset({"$match", "$unset"})
_EXPRESSION: Final = "$expr"
_RULES_DEPEND_ON: Final = frozenset({"ns", "documentKey"})
"""Without these fields nobody knows which rules an event is under, or which key its token holds."""


def policy_of(settings: Settings, pipeline: Iterable[Mapping[str, Any]] = ()) -> Policy:
    """Read the policy that the settings ask for; `pipeline` are the stages that events pass before it."""
    given = settings.policy
    key = given.key.get_secret_value().encode() if given.key is not None else None
    rules = [_rule(number, rule, has_key=key is not None) for number, rule in enumerate(given.rules)]
    if key is not None and len(key) < _LEAST_KEY_BYTES:
        raise SettingsError(
            f"policy.key has fewer than {_LEAST_KEY_BYTES} bytes: hashes under it could be guessed",
            hint="Make one with `openssl rand -hex 32` and name its file in policy.key_file.",
        )
    if rules:
        _refuse_revealing_stages(pipeline)
    return Policy(rules, key)


def _rule(number: int, given: PolicyRuleSettings, *, has_key: bool) -> Rule:
    where = f"policy.rules.{number}"
    for path in given.fields:
        if not all(path.split(".")):
            raise SettingsError(
                f"{where}: {path!r} is not a path", hint="Write names with dots between: customer.email."
            )
        if path.split(".")[0] == "_id" and given.action not in (Kind.HASH, _ONLY):
            raise SettingsError(
                f"{where}: {given.action} of {path} would make one document out of many",
                hint='Use action = "hash" for _id: equal keys have equal hashes.',
            )
    if given.action == Kind.HASH and not has_key:
        raise SettingsError(f"{where} uses hash, but there is no key", hint="Set policy.key_file or policy.key.")
    if (given.length is not None) != (given.action == Kind.TRUNCATE):
        raise SettingsError(
            f"{where}: length belongs to truncate, which needs one", hint="Write for example length = 8."
        )
    action = None if given.action == _ONLY else Action(Kind(given.action), given.length or 0)
    return Rule(given.namespaces, given.fields, action)


def _refuse_revealing_stages(pipeline: Iterable[Mapping[str, Any]]) -> None:
    """Refuse stages that may take values to where no rule looks, and expressions, whose errors quote values."""
    for name, stage in ((name, stage) for each in pipeline for name, stage in each.items()):
        if name not in _FILTERING_STAGES:
            raise SettingsError(
                f"the pipeline has {name}, which may show values where no rule of the policy looks for them",
                hint=f"Under a policy a pipeline may hold {', '.join(sorted(_FILTERING_STAGES))}.",
            )
        if name == "$unset" and (removed := _RULES_DEPEND_ON & set(map(_top_level, _listed(stage)))):
            raise SettingsError(
                f"the pipeline removes {', '.join(sorted(removed))}, without which no rule can be applied",
                hint='Remove fields of documents with action = "drop" instead.',
            )
        if _holds_expression(stage):
            raise SettingsError(
                f"the pipeline has {_EXPRESSION}, and an expression's error may quote a value that the policy hides",
                hint="Compare with query operators, or use a filter of capture.transforms, which sees governed events.",
            )


def _listed(value: Any) -> list[Any]:
    """Give what `$unset` names: one path or a list of them."""
    return value if isinstance(value, list) else [value]


def _top_level(path: Any) -> str:
    return str(path).partition(".")[0]


def _holds_expression(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _EXPRESSION in value or any(map(_holds_expression, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_expression, value))
