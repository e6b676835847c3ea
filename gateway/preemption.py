"""What somebody who takes machines away tells of it, read from JSON: `POST /admin/preempt`."""

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from gateway.specs import Spec, faults_of
from replicas.notice import of_host, of_replica


class Preemption(Spec):
    """That a managed replica, or all on a host, are gone in so many seconds."""

    replica: str | None = None
    host: str | None = None
    grace_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0

    @model_validator(mode="after")
    def _has_one_subject(self) -> Self:
        if (self.replica is None) == (self.host is None):
            raise ValueError("name a replica, or a host")
        return self

    @property
    def subject(self) -> str:
        """Under which the notice is left."""
        return of_replica(self.replica) if self.replica is not None else of_host(self.host or "")

    def concerns(self, replica: str, host: str) -> bool:
        return replica == self.replica or host == self.host


def read_preemption(raw: bytes) -> Preemption:
    """The request's body.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        return Preemption.model_validate_json(raw)
    except ValidationError as error:
        raise ValueError("; ".join(faults_of(error))) from error
