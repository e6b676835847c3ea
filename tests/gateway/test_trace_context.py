import pytest

from gateway.trace_context import TraceContext, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", (TRACE, int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-00", (TRACE, int(SPAN, 16), False)),
        (f"00-{TRACE}-{SPAN}-03", (TRACE, int(SPAN, 16), True)),
        (f" 00-{TRACE}-{SPAN}-01 ", (TRACE, int(SPAN, 16), True)),
        # A later version may say more.
        (f"01-{TRACE}-{SPAN}-01-what-the-future-brings", (TRACE, int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_what_a_caller_sends(header: str, context: tuple[str, int, bool] | None) -> None:
    found = read_traceparent(header)
    assert (found and (found.trace_id, found.span_id, found.is_sampled)) == context


def test_what_is_sent_is_read_as_it_was() -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    assert TraceContext(TRACE, int(SPAN, 16), True).header() == header
    found = read_traceparent(header)
    assert found is not None
    assert found.header() == header
