"""How an exchange with a replica fails.

A module of its own because what is interpreted derives from it, and a compiled class takes no such heirs (see `compiled`).
"""


class ExchangeFailed(Exception):  # noqa: N818 - the name of what happened
    """The exchange broke. `failure` is a short word for headers, metrics and logs."""

    def __init__(self, failure: str, detail: str = "") -> None:
        super().__init__(f"{failure}: {detail}" if detail else failure)
        self.failure = failure
