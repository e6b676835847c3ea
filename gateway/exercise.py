"""What a drill says of a tier, read from JSON: `POST /admin/exercised`."""

from dataclasses import dataclass

from pydantic import Field, ValidationError

from gateway.specs import Spec, faults_of

MAX_DETAIL = 300


class _Body(Spec):
    tier: str = Field(max_length=64)
    passed: bool
    model: str | None = None
    detail: str = Field(default="", max_length=MAX_DETAIL)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A tier was forced to serve, and did as it promises or not."""

    model: str | None
    tier: str
    passed: bool
    detail: str

    def text(self, model: str) -> str:
        """For the event log."""
        if self.passed:
            return f"{self.tier} of {model} was drilled and passed"
        return f"{self.tier} of {model} was drilled and failed" + (f": {self.detail}" if self.detail else "")


def read_exercise(raw: bytes) -> Exercise:
    """The request's body.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        body = _Body.model_validate_json(raw)
    except ValidationError as error:
        raise ValueError(faults_of(error)[0]) from error
    return Exercise(body.model, body.tier, body.passed, body.detail)
