"""What a process does with memory that it has freed; nothing here imports torch.

Every step of a training frees what it took, and glibc gives it back to the system at once: the next
step has to fetch it again, page by page, filled with zeros.
"""

from __future__ import annotations

import ctypes
import os
import sys

TRIM, MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
KEPT = 2**30  # bytes that stay with the process
APART = 2**25  # from here on a tensor has pages of its own: together they would leave holes
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_heap() -> bool:
    """Keep what is freed for the next step, unless the environment says how; is it kept?

    It holds for the whole process, so it is for programs, not for a library, to ask for it.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(TRIM, KEPT)) and bool(mallopt(MMAP, APART))
