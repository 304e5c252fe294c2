"""Time, which passes, leaps and is set back, and the gateway's ends, clean or not. Nothing that was answered is lost,
and the folder stays sound."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from gateway.wire.codes import RequestCode
from tests.gateway.model.machine import Machine, topics

steps_while_down = st.sampled_from([0, 0, -20_000, -1, 30_000])


class Times(Machine):
    """The rules about time, restarts and crashes."""

    @rule(ms=st.sampled_from([1, 2, 500, 1_000, 4_000, 12_000]))
    def advance(self, ms: int) -> None:
        self.gateway.advance(ms)

    @rule(ms=st.sampled_from([700, 5_000, 30_000, 200_000]))
    def stall(self, ms: int) -> None:
        """Let time pass while the process does not run."""
        self.gateway.jump(ms)
        self._stalled()

    @rule(ms=st.sampled_from([-20_000, -300, 400, 30_000, 100_000]))
    def step_clock(self, ms: int) -> None:
        """Set the wall clock, which the gateway checks every second."""
        self.gateway.set_clock(ms)
        self.gateway.advance(1_000)
        self._stalled()

    @rule(ms=st.sampled_from([0, 10, 6_000, 100_000]), step_ms=steps_while_down)
    def restart(self, ms: int, step_ms: int) -> None:
        """Stop and start again, perhaps with a wall clock that was set meanwhile."""
        self.gateway.stop()
        self.gateway.jump(ms)
        self.gateway.set_clock(step_ms)
        self.gateway.start()
        self._started()
        self.gateway.check()

    @rule(sends=st.booleans(), topic=topics, step_ms=steps_while_down)
    def crash(self, sends: bool, topic: str, step_ms: int) -> None:
        """Kill the process, perhaps while it has a message whose send is not answered."""
        if sends:
            fields = self.client.send_fields(topic)
            self.client.send(RequestCode.SEND_MESSAGE_V2, fields, b"never answered")
        self.gateway.set_clock(step_ms)
        self.gateway.crash()
        world = self.world
        for key, told in world.unsure.items():
            group, topic, queue = key
            found = self.gateway.store.progress.get(group.encode(), topic.encode(), queue)
            assert found in {world.progress.get(key), *told}
            if found is None:
                del world.progress[key]
            else:
                world.progress[key] = found
        self._started()
        self.gateway.check()

    def _started(self) -> None:
        self.client = self.gateway.connect()
        self.world.unsure.clear()
        self.world.resets.clear()
        self._stalled()
