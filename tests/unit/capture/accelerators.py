"""A pretended accelerator: one stream in order, events on a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeDevice:
    """torch's module for an accelerator, with one stream.

    ``host_ms`` is the time now; ``busy_until_ms`` is when the queued work ends. Both are set by the test.
    """

    def __init__(self) -> None:
        self.host_ms = 0.0
        self.busy_until_ms = 0.0
        self.initialized = True
        self.capturing = False
        self.index = 0
        self.events: list[Any] = []
        self.calls: list[str] = []
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_ms: float | None = None
                self.index: int | None = None
                device.events.append(self)

            def record(self, stream: Any) -> None:
                device.calls.append("record")
                assert self.index in (None, stream.device_index), "an event of another device"
                self.index = stream.device_index
                self.at_ms = max(device.host_ms, device.busy_until_ms)

            def query(self) -> bool:
                device.calls.append("query")
                return self.at_ms is not None and self.at_ms <= device.host_ms

            def elapsed_time(self, other: Event) -> float:
                device.calls.append("elapsed_time")
                assert self.query()
                assert other.query()
                assert self.at_ms is not None
                assert other.at_ms is not None
                return other.at_ms - self.at_ms

        self.Event = Event

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> Any:
        assert self.initialized, "would initialise the device"
        return SimpleNamespace(device_index=self.index)  # equal where the device is, as torch's streams are

    def current_device(self) -> int:
        assert self.initialized, "would initialise the device"
        return self.index

    def get_device_name(self, index: int) -> str:
        return f"Pretended {index}"

    def queue_work(self, ms: float) -> None:
        self.busy_until_ms = max(self.host_ms, self.busy_until_ms) + ms

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the device")

    def is_available(self) -> bool:
        raise AssertionError("asking may make a later fork fail")
