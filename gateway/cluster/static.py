"""Workers at addresses that the configuration lists."""

from collections.abc import Sequence

from sluice.gateway.cluster.address_source import AddressSource


class StaticSource(AddressSource):
    """Places the workers at `urls`. A worker that no other gateway has is on the slot of its place in the list."""

    def __init__(self, name: str, slots: Sequence[str], urls: Sequence[str]) -> None:
        super().__init__(name, slots, "the configuration")
        self.offer(urls)
