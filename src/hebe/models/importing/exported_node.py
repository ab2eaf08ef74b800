"""What a node of an exported graph is, and which line of the user's code it comes from."""

from __future__ import annotations

import torch
from torch import fx

from hebe.models.importing.user_code import user_line


def op_name(node: fx.Node) -> str:
    """The ATen name of a node's op, without overload; empty for other functions."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target.overloadpacket.__name__)
    return ""


def described(node: fx.Node) -> str:
    """The op, and where torch.export knows it the line: ``aten.ne.Scalar (net.py, line 31: `mask = seq != 0`)``."""
    line = user_line(node.meta.get("stack_trace") or "")
    return str(node.target) if line is None else f"{node.target} ({line})"
