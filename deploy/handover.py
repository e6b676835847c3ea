"""What a command hands to the processes that it starts, by environment: other users of a machine can't read that."""

import os

STORE_URL = "GRACEWAY_STORE_URL"
"""Where the state store is, which is not in the config if it is an embedded one."""
CONFIG = "GRACEWAY_CONFIG"
HOME = "GRACEWAY_HOME"
PID = "GRACEWAY_PID"
"""The file that `graceway up` was given, its private folder, and its process, as far as they are on this machine."""
LOG_PIPE = "GRACEWAY_LOG_PIPE"
"""A named pipe whose lines `graceway up` writes to its own standard error."""


def store_url() -> str:
    return os.environ[STORE_URL]
