"""What training takes from the machine: device, precision, and the C library's memory settings."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from headway.errors import ConfigError

__all__ = [
    "autocast",
    "choose_device",
    "computes_bfloat16",
    "has_avx2",
    "keep_freed_memory",
    "processor_name",
    "product_rate",
    "return_freed_memory",
]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def choose_device(name: str) -> torch.device:
    """The device for "auto", "cpu" or "cuda"."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': PyTorch finds no GPU here; use 'auto' or 'cpu'")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def has_avx2() -> bool:
    """Whether this is an x86 processor with 256-bit vectors of integers."""
    return torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Matrix products in bfloat16, where ``precision`` asks for it or is "auto" and the hardware computes it."""
    if precision == "bfloat16" or (precision == "auto" and computes_bfloat16(device)):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def processor_name() -> str:
    """The processor's model, as the system names it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def product_rate(dtype: torch.dtype, device: torch.device) -> float:
    """GFLOP/s of the product of two 2048-square matrices: the best of ten."""
    a = torch.randn(2048, 2048, device=device).to(dtype)
    best = 0.0
    for _ in range(10):
        begin = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * 2048**3 / (time.perf_counter() - begin) / 1e9)
    return best


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks for what comes next instead of returning them to the system.

    Otherwise every step of training and every batch of decoding maps and clears its memory anew, page by page, which
    can cost a third of a training step's time.
    """
    if libc := _glibc():
        # Older versions accept no more than 32 MiB.
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) or libc.mallopt(_M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Give glibc's free pages back to the system, wherever they lie.

    Batches differ in shape, so kept blocks fragment: without this, now and then, the heap of a small model grew from 2
    to 5 GiB in a thousand steps, a fifth of it in use.
    """
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
    except OSError:  # another C library, with settings of its own
        return None
