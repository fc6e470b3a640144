"""The producer: owns a stream under a lease, follows it in attempts, delivers it, and can be controlled and monitored.

`assembly` puts one together from the settings; `producer` runs it; `attempt` follows the stream until an error;
`delivery` holds the commit order.
"""
