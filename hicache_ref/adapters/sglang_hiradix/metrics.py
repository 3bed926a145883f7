"""What stands for upstream's collector of storage metrics: it registers nothing and sums up what it is told."""

from collections.abc import Mapping


class Tally:
    """Tokens that were reported since somebody took the sums."""

    def __init__(self) -> None:
        self.prefetched = self.backed_up = 0

    def take(self) -> tuple[int, int]:
        """Tokens reported as prefetched and as backed up; the sums begin anew."""
        taken = self.prefetched, self.backed_up
        self.prefetched = self.backed_up = 0
        return taken


TALLY = Tally()
"""What any collector of this process was told."""


class StorageCollector:
    """Stands for StorageMetricsCollector. A process may have several, and each report counts once for each it reaches.

    prometheus_client refuses a second one, since its metrics have the names of the first. Walks attach again and
    again, so nothing is refused here.
    """

    def __init__(self, labels: Mapping[str, object]) -> None:
        self.labels = labels

    def log_prefetched_tokens(self, prefetched_tokens: int) -> None:
        """So many tokens came from storage."""
        TALLY.prefetched += prefetched_tokens

    def log_backuped_tokens(self, backuped_tokens: int) -> None:
        """So many tokens were stored."""
        TALLY.backed_up += backuped_tokens

    def log_storage_metrics(self, storage_metrics: object = None) -> None:
        """What the backend says of itself is its own affair."""
