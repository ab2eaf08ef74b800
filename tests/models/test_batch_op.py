import ctypes
import os
import warnings

import numpy as np
import torch

from hebe.kernels.lookup.batch_loop import BATCH, BLOCK_WORDS, END, Word
from hebe.kernels.lookup.fused_lookup import LookupWord
from hebe.models.scripted_net import register_next_batch, release_address


class Counting(torch.nn.Module):
    """Adds up the items of all batches in `scores`."""

    def forward(self, block: int, scores: torch.Tensor, others: torch.Tensor) -> int:
        items = torch.ops.hebe.next_batch(block, scores, others, others, others, others)
        while items > 0:
            scores += items
            items = torch.ops.hebe.next_batch(block, scores, others, others, others, others)
        return items


def test_a_scripted_module_goes_from_batch_to_batch_and_keeps_no_tensor():
    register_next_batch()
    register_next_batch()  # once in a process, however often it is asked for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        counting = torch.jit.script(Counting())
    sizes = iter((3, 4))
    looking_up = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    look_up = looking_up(lambda _block, _two, _three: block.__setitem__(LookupWord.ITEMS, next(sizes)) or 0)
    libc = ctypes.CDLL(None)
    inbox, orders = os.pipe()
    block, left = np.zeros(BLOCK_WORDS, np.int64), np.zeros(1, np.int64)
    block[Word.LEFT] = left.ctypes.data
    block[Word.INBOX], block[Word.OUTBOX], block[Word.RELEASE] = inbox, -1, release_address()
    block[Word.LOOK_UP] = ctypes.cast(look_up, ctypes.c_void_p).value
    for word, function in ((Word.READ, libc.read), (Word.WRITE, libc.write), (Word.CLOCK, libc.clock_gettime)):
        block[word] = ctypes.cast(function, ctypes.c_void_p).value
    for message in (BATCH, BATCH, END):
        os.write(orders, np.int64(message).tobytes())
    scores, others = torch.zeros(2), torch.zeros(1)
    uses = scores._use_count()
    assert counting(block.ctypes.data, scores, others) == 0
    assert scores.tolist() == [7, 7]
    assert scores._use_count() == uses
    os.close(inbox)
    os.close(orders)
