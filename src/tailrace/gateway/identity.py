"""Who a client is: the upstream says, on the client's own connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

from tailrace.errors import ServerUnreachable

if TYPE_CHECKING:
    from tailrace.gateway.upstream import UpstreamConnection


@dataclass(frozen=True, slots=True)
class Identity:
    """The users that a connection has authenticated as; servers since 5.0 have at most one."""

    users: frozenset[str] = frozenset()
    """As `user@database`."""
    accounts: frozenset[str] = frozenset()
    """The same with the ids of the accounts: who is dropped and made again is another."""
    restrictions: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    """Of the users and of their roles; of each, one must be met."""

    @classmethod
    async def ask(cls, upstream: UpstreamConnection) -> Identity:
        """Ask who has authenticated on a connection, and from where it may."""
        status = await upstream.command({"connectionStatus": 1, "$db": "admin"})
        found = status.get("authInfo", {}).get("authenticatedUsers", ())
        users, accounts, restrictions = set(), set(), []
        for user in found:
            name = f"{user['user']}@{user['db']}"
            asked = {"usersInfo": {"user": user["user"], "db": user["db"]}, "showAuthenticationRestrictions": True}
            reply = await upstream.command({**asked, "$db": "admin"})
            if reply.get("ok") != 1:
                raise ServerUnreachable(f"the upstream does not say from where {name} may come: {reply.get('errmsg')}")
            account: Mapping[str, Any] = next(iter(reply.get("users", ())), {})
            users.add(name)
            accounts.add(f"{name} {account.get('userId')}")
            restrictions.append(account.get("authenticationRestrictions", ()))
            restrictions += account.get("inheritedAuthenticationRestrictions", ())
        return cls(frozenset(users), frozenset(accounts), tuple(tuple(each) for each in restrictions if each))

    def may_come_from(self, address: str) -> bool:
        """Return whether the restrictions allow a client's address.

        The upstream sees the gateway's address and checks that; where the client is, only the gateway knows.
        """
        return all(
            any(_is_within(address, either.get("clientSource", ())) for either in group) for group in self.restrictions
        )


NOBODY = Identity()


def _is_within(address: str, networks: Sequence[str]) -> bool:
    return not networks or any(ip_address(address) in ip_network(network, strict=False) for network in networks)
