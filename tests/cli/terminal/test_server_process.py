import os
import subprocess
import sys

import pytest

from hebe.cli.terminal.server_process import ServerProcess, ServerProcessError


def test_what_has_ended_has_no_resident_size(tmp_path):
    (tmp_path / "server.log").write_text("killed\n")
    server = ServerProcess(tmp_path, tmp_path / "server.log")
    server._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.resident_bytes > 0
        server._process.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked for its exit status yet
        with pytest.raises(ServerProcessError, match="the server ended with exit status -9"):
            _ = server.resident_bytes
    finally:
        server._process.stdin.close()
        server.stop()
