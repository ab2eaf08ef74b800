import pytest

from hebe.load_generator.senders.grpc.connection import status_number, status_of_answer, status_of_reset
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode


@pytest.mark.parametrize(
    ("http_status", "headers", "status"),
    [
        (200, {b"grpc-status": b"0"}, ("OK", "")),
        (200, {b"grpc-status": b"14", b"grpc-message": b"full"}, ("UNAVAILABLE", "full")),
        (
            200,
            {b"grpc-status": b"8", b"grpc-message": b"100%25 %C3%BCber %zz"},
            ("RESOURCE_EXHAUSTED", "100% über %zz"),
        ),
        (200, {b"grpc-status": b"2", b"grpc-message": b"%ff"}, ("UNKNOWN", "\ufffd")),
        (200, {b"grpc-status": b"16"}, ("UNAUTHENTICATED", "")),
        (200, {b"grpc-status": b"17"}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b"-1"}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b""}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b"9" * 5000}, ("UNKNOWN", "")),
        (503, {b"grpc-status": b"5"}, ("NOT_FOUND", "")),
        (503, {}, ("UNAVAILABLE", "HTTP status 503 and no gRPC status")),
        (429, {}, ("UNAVAILABLE", "HTTP status 429 and no gRPC status")),
        (401, {}, ("UNAUTHENTICATED", "HTTP status 401 and no gRPC status")),
        (403, {}, ("PERMISSION_DENIED", "HTTP status 403 and no gRPC status")),
        (404, {}, ("UNIMPLEMENTED", "HTTP status 404 and no gRPC status")),
        (400, {}, ("INTERNAL", "HTTP status 400 and no gRPC status")),
        (500, {}, ("UNKNOWN", "HTTP status 500 and no gRPC status")),
        (200, {}, ("UNKNOWN", "HTTP status 200 and no gRPC status")),
    ],
)
def test_what_an_answer_ended_with(http_status, headers, status):
    assert status_of_answer(http_status, headers) == status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, ("UNAVAILABLE", "stream reset: REFUSED_STREAM")),
        (ErrorCode.CANCEL, ("CANCELLED", "stream reset: CANCEL")),
        (ErrorCode.ENHANCE_YOUR_CALM, ("RESOURCE_EXHAUSTED", "stream reset: ENHANCE_YOUR_CALM")),
        (ErrorCode.INADEQUATE_SECURITY, ("PERMISSION_DENIED", "stream reset: INADEQUATE_SECURITY")),
        (ErrorCode.NO_ERROR, ("INTERNAL", "stream reset: NO_ERROR")),
        (ErrorCode.PROTOCOL_ERROR, ("INTERNAL", "stream reset: PROTOCOL_ERROR")),
        (77, ("INTERNAL", "stream reset: error 77")),
    ],
)
def test_what_a_stream_was_reset_for(code, status):
    assert status_of_reset(int(code)) == status


def test_numbers_of_codes():
    assert [status_number(code) for code in ("OK", "NOT_FOUND", "UNIMPLEMENTED", "UNAVAILABLE")] == [0, 5, 12, 14]
