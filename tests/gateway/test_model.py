"""Random work of clients at a whole gateway, compared after each step with a plain model of its content.

The modules of `model` say beside their rules what the gateway promises: `sending`, `transactions`, `pending`, `topics`,
`consumers`, `pops`, `recurring` and `times`. `comparing` compares the gateway with the model, `world`.
"""

from __future__ import annotations

from hypothesis import settings

from tests.gateway.model.comparing import Comparing
from tests.gateway.model.pending import Pending
from tests.gateway.model.sending import Sending
from tests.gateway.model.times import Times
from tests.gateway.model.topics import Topics
from tests.gateway.model.transactions import Transactions


class GatewayAndModel(Sending, Transactions, Pending, Topics, Times, Comparing):
    """All rules together."""


TestGatewayAndModel = GatewayAndModel.TestCase
TestGatewayAndModel.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
