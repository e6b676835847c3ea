"""What is read of a gateway's own time, from an exposition as a literal."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.own_time import bound_of

NAME = "graceway_overhead_seconds"


def exposition(*cumulative: tuple[str, int], stage: str = "refuse") -> str:
    lines = [f"# TYPE {NAME} histogram"]
    lines += [f'{NAME}_bucket{{model="m",stage="{stage}",le="{edge}"}} {count}' for edge, count in cumulative]
    return "\n".join([*lines, f'{NAME}_count{{model="m",stage="{stage}"}} {cumulative[-1][1]}']) + "\n"


@pytest.mark.parametrize(
    ("text", "q", "expected"),
    [
        (exposition(("0.001", 98), ("0.005", 99), ("+Inf", 100)), 0.5, 0.001),
        (exposition(("0.001", 98), ("0.005", 99), ("+Inf", 100)), 0.99, 0.005),
        (exposition(("0.001", 98), ("0.005", 99), ("+Inf", 100)), 0.999, float("inf")),
        (exposition(("0.001", 0), ("+Inf", 0)), 0.99, None),
        (exposition(("0.001", 9), ("+Inf", 9), stage="decide"), 0.99, None),
        ("", 0.99, None),
    ],
)
def test_the_bucket_that_the_quantile_is_in(text: str, q: float, expected: float | None) -> None:
    assert bound_of(text_string_to_metric_families(text), q) == expected
