"""A message on its way into DATA frames: its buffers are cut where a frame or a window ends, and never copied."""

from __future__ import annotations

from collections.abc import Sequence

from hebe.load_generator.senders.grpc.http2_frames import DATA, END_STREAM, frame_head

Buffer = bytes | memoryview


class OutgoingMessage:
    """The body of one stream, and how far it has been sent; `unsent_bytes` are left."""

    __slots__ = ("_at", "_part", "_parts", "unsent_bytes")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        """`parts` follow one another, items of one byte each; one at least is not empty."""
        self._parts = parts
        self._part = self._at = 0
        self.unsent_bytes = sum(map(len, parts))

    def cut(self, stream: int, allowed_bytes: int, max_frame_bytes: int, out: list[Buffer]) -> int:
        """Append to `out` the next DATA frames of `stream`, as far as `allowed_bytes` of payload go.

        Returns how many bytes of payload that is. The last frame of the message ends the stream.
        """
        parts, part, at = self._parts, self._part, self._at
        cut_bytes = min(allowed_bytes, self.unsent_bytes)
        left, ends = cut_bytes, cut_bytes == self.unsent_bytes
        # All frames but the last have the same head: a hundred of them at the size that every peer takes.
        full_head = frame_head(max_frame_bytes, DATA, 0, stream)
        while left:
            missing = max_frame_bytes
            if left > max_frame_bytes:
                out.append(full_head)
            else:
                missing = left
                out.append(frame_head(left, DATA, END_STREAM if ends else 0, stream))
            left -= missing
            while missing:
                buffer = parts[part]
                available = len(buffer) - at
                if available > missing:
                    out.append(buffer[at : at + missing])
                    at += missing
                    break
                if available:
                    out.append(buffer[at:] if at else buffer)
                    missing -= available
                part, at = part + 1, 0
        self._part, self._at = part, at
        self.unsent_bytes -= cut_bytes
        return cut_bytes
