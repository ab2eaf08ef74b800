"""Answers to what Triton's clients may ask about tracing, logging and shared memory.

Traces and logs are set when the server starts, and tensors travel in requests only: these can be read, not changed.
"""

from __future__ import annotations

from typing import Any

LOG_SETTINGS: dict[str, Any] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def trace_settings(*, on: bool) -> dict[str, Any]:
    """What is traced: every request, or none (of which OpenTelemetry's own environment may sample fewer)."""
    return {
        "trace_level": ["TIMESTAMPS"] if on else ["OFF"],
        "trace_rate": "1" if on else "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


FIXED_SETTINGS = "trace and log settings are fixed when the server starts; see hebe serve --help"

NO_SHARED_MEMORY = "shared memory is not supported; send tensors in the request"
