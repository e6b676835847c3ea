import pytest

from gateway.trace_context import TraceContext, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(int(TRACE, 16), int(SPAN, 16), False)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
        (f" 00-{TRACE}-{SPAN}-01 ", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
        # A later version may say more.
        (f"01-{TRACE}-{SPAN}-01-what-the-future-brings", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
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
def test_what_a_caller_sends(header: str, context: TraceContext | None) -> None:
    assert read_traceparent(header) == context


def test_what_is_sent_is_read_as_it_was() -> None:
    context = TraceContext(int(TRACE, 16), int(SPAN, 16), True)
    assert read_traceparent(context.header()) == context
