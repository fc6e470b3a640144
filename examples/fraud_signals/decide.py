"""Decide about a payment by the user's signals: python decide.py USER [REDIS_URL]."""

from __future__ import annotations

import sys

import redis

from tailrace.features import FeatureValues, read_named


def verdict(signals: FeatureValues) -> str:
    """Few rules, each one that a person can explain to the customer."""
    if signals["transactions_1m"] > 5:
        return "refuse: more than five payments in a minute"
    if signals["amount_1h"] > 5_000:
        return "ask: more than 5,000 in an hour"
    if signals["merchants_today"] > 20:
        return "ask: more than twenty merchants today"
    return "accept"


def main() -> None:
    user = sys.argv[1]
    url = sys.argv[2] if len(sys.argv) > 2 else "redis://127.0.0.1:6379"
    with redis.Redis.from_url(url) as client:
        signals = read_named(client, user, "fraud")
    for name, value in signals.values.items():
        print(f"{name:20} {value}")
    print(f"as of {signals.as_of}: {verdict(signals)}")


if __name__ == "__main__":
    main()
