"""The table of what tracing costs, from samples of known size."""

from loadtests.tracing_cost import Sample, _line


def test_each_round_is_compared_with_its_own() -> None:
    # The machine was twice as slow in the second round, for all alike.
    base = [Sample(1000.0, 300.0), Sample(500.0, 600.0), Sample(1000.0, 300.0)]
    traced = [Sample(900.0, 315.0), Sample(450.0, 630.0), Sample(990.0, 330.0)]
    line = _line("whole", "100 %", traced, base).split()
    assert line == ["whole", "100", "%", "900", "-10.0%", "330", "+5.0%"]
