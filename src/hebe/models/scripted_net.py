"""The DenseNet without the interpreter: traced and frozen. Workers call it so, and `split_check` checks it so."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import torch


def scripted(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    """The DenseNet `module`, in evaluation mode and traced on `inputs` of two items or more, as a function of any such.

    Raises whatever the module does on `inputs`, and RuntimeError where it cannot be traced.
    """
    # TorchScript is deprecated in favour of torch.export, but AOTInductor was slower here and does not scale over
    # threads without a copy of the weights for each (docs/serving.md); it stays behind this one function.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)
        script: Any = torch.jit
        warnings.simplefilter("ignore", script.TracerWarning)
        traced = script.trace(module, inputs, check_trace=False)
        # Written and read back, because what is traced belongs to one store of code that lives as long as the process,
        # and freezing puts the weights into the code: every model that was ever loaded would stay.
        written = io.BytesIO()
        script.save(traced, written)
        written.seek(0)
        # optimize_numerics folds a factor that follows a convolution into its weights, and takes the factor's
        # dimension 1 for the channels, whichever dimension it lines up with: other scores.
        function: Callable[..., torch.Tensor] = script.freeze(script.load(written), optimize_numerics=False)
    return function
