"""The known answer of a tier, where the config names none: what its replicas agree on becomes it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class KnownAnswer:
    """Learns from answers to the same greedy prompt, and judges later ones.

    One answer given twice by one replica, with no other replica against it, becomes the known one. A replica that
    contradicts itself while nothing is known shows that the tier's answers can't be compared; then nothing is judged.
    """

    answer: str | None = None
    is_off: bool = False
    _latest: dict[str, str] = field(default_factory=dict)

    def is_wrong(self, replica: str, answer: str) -> bool:
        """Enters an answer; whether it contradicts the known one."""
        before = self._latest.get(replica)
        self._latest[replica] = answer
        if self.is_off:
            return False
        if self.answer is None:
            self._learn(before, answer)
            return False
        if answer == self.answer:
            return False
        return not self._all_changed(answer)

    def _learn(self, before: str | None, answer: str) -> None:
        if before is None:
            return
        if before != answer:
            self.is_off = True
        elif all(other == answer for other in self._latest.values()):
            self.answer = answer

    def _all_changed(self, answer: str) -> bool:
        """Whether all replicas, at least two, now give the same other answer: then the model changed, and none lies."""
        if len(self._latest) < 2 or any(other != answer for other in self._latest.values()):
            return False
        self.answer = answer
        return True

    def forget(self, replica: str) -> None:
        """The replica is gone, and its answer with it."""
        self._latest.pop(replica, None)
