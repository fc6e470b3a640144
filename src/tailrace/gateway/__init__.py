"""The MongoDB wire protocol: any driver in any language connects, and watches what the hub gives.

Here belong frames, the conversation with one client, cursors, and the connection to the upstream on which everything
that is no change stream goes on unchanged. Making events is the engine's, sharing them the hub's.
"""

from tailrace.gateway.hello import Presentation
from tailrace.gateway.proving import EngineProof, engine_proof
from tailrace.gateway.server import Gateway, GatewayCounts, GatewayOptions
from tailrace.gateway.upstream import Upstream

__all__ = ["EngineProof", "Gateway", "GatewayCounts", "GatewayOptions", "Presentation", "Upstream", "engine_proof"]
