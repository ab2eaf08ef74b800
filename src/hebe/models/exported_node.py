"""What a node of an exported graph is, and which line of the user's code it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import fx

_FRAME_PATTERN = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n\s*(?P<code>.*)')
_TORCH = str(Path(torch.__file__).parent)
_LONGEST_CODE = 80


def op_name(node: fx.Node) -> str:
    """The ATen name of a node's op, without overload; empty for other functions."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target.overloadpacket.__name__)
    return ""


def described(node: fx.Node) -> str:
    """The op, and where torch.export knows it the line: ``aten.ne.Scalar (net.py, line 31: `mask = seq != 0`)``."""
    frames = list(_FRAME_PATTERN.finditer(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if not frame["file"].startswith((_TORCH, "torch/"))]
    if not own:
        return str(node.target)
    code = own[-1]["code"].strip()
    if len(code) > _LONGEST_CODE:
        code = code[: _LONGEST_CODE - 3] + "..."
    return f"{node.target} ({Path(own[-1]['file']).name}, line {own[-1]['line']}: `{code}`)"
