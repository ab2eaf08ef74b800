"""HTTP/1.1 over asyncio: heads, messages, connections, the listening server."""
