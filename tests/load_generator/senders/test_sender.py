import errno

import pytest

from hebe.load_generator.senders.sender import OUT_OF_FILES, OUT_OF_PORTS, not_connected_kind


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (OSError(errno.ECONNREFUSED, "no"), "connection refused"),
        (OSError(errno.EMFILE, "no"), OUT_OF_FILES),
        (OSError(errno.ENFILE, "no"), OUT_OF_FILES),
        (OSError(errno.EADDRNOTAVAIL, "no"), OUT_OF_PORTS),
        (OSError(errno.EHOSTUNREACH, "no"), "cannot connect"),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 1), [Errno 111] ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 113] ('::1', 1), [Errno 111] ('127.0.0.1', 1)"), "cannot connect"),
        (OSError("connection closed"), "cannot connect"),
        (TimeoutError(), "cannot connect"),
    ],
)
def test_what_a_connection_failed_to_open_by(fault, kind):
    assert not_connected_kind(fault) == kind
