"""How failed requests are counted."""

from __future__ import annotations

from dataclasses import dataclass

from tritonstack.errors import DeadlineExceeded, InternalError, ServerError, ServerUnavailable

UNAVAILABLE = "ServerUnavailable"
WRONG_ANSWER = "ValidationFailed"


@dataclass(frozen=True, slots=True)
class Failure:
    """How one failed request is counted. `retreat`: nothing is listening, so a closed loop should pause."""

    kind: str
    message: str
    retreat: bool = False


def classify(error: Exception) -> Failure | None:
    """How a failed request is counted; None for what is no failure of a request but a defect."""
    if isinstance(error, ServerError):
        return Failure(f"ServerError {error.code}", error.summary)
    if isinstance(error, ServerUnavailable):
        return Failure(UNAVAILABLE, error.summary, retreat=True)
    if isinstance(error, DeadlineExceeded):
        return Failure("DeadlineExceeded", error.summary)
    return None


def failure_of(error: Exception) -> tuple[str, str]:
    """Kind and message of the error of a request. Raises InternalError for one that no request can have."""
    failure = classify(error)
    if failure is None:
        raise InternalError(f"{type(error).__name__} is no failure of a request: {error}")
    return failure.kind, failure.message
