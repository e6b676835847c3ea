"""What every test starts from."""

import signal


def pytest_configure() -> None:
    # A shell that starts tests in the background has SIGINT ignored, and every process below would inherit that: then
    # what a test says of Ctrl-C would hang on who started it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
