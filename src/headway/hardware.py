"""Detect and configure the hardware: device, precision, threads, and the C library's memory allocator."""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import product
from pathlib import Path

import torch

from headway.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MADV_COLLAPSE = 25  # linux/mman.h
_keeps_freed_memory = False
_MIN_HUGE_PAGE = 1 << 21  # bytes; larger on some processors
# Matches the entry of a writable, anonymous memory region in /proc/self/smaps.
_PRIVATE_REGION = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \S+ \S+ 0 *(?P<name>|\[heap\])\n"
    r"(?:[A-Z].*\n)*?VmFlags:(?P<flags>.*)$",
    re.MULTILINE,
)


def choose_device(device: str | torch.device = "auto", *, needs_cpu: bool = False) -> torch.device:
    """Return the device for "auto", "cpu", "cuda" or another PyTorch device name such as "cuda:1".

    "auto" means a GPU if there is one. If ``needs_cpu`` is set, the computation runs only on the CPU, so "auto" selects
    the CPU.

    Raises:
        ConfigError: The name is unknown, or PyTorch does not find this GPU.
    """
    if device == "auto":
        return torch.device("cpu" if needs_cpu or not torch.cuda.is_available() else "cuda")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device = {device!r}: expected 'auto', 'cpu' or 'cuda'") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {str(device)!r}: PyTorch finds no GPU on this machine; use 'auto' or 'cpu'")
    if chosen.type == "cuda" and chosen.index is not None and chosen.index >= (count := torch.cuda.device_count()):
        found_gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        raise ConfigError(f"device = {str(device)!r}: PyTorch finds {found_gpus} on this machine, counted from 0")
    return chosen


def set_num_threads_of_this_thread(count: int) -> None:
    """Set the number of threads that PyTorch uses for work of the calling thread only.

    ``torch.set_num_threads`` would also change the default for every thread that uses PyTorch for the first time. It is
    used as a fallback if PyTorch does not use the OpenMP library of its Linux packages: too few threads later are
    better than too many now.
    """
    torch.get_num_threads()  # the first call in a thread sets its number of threads to the default
    for set_threads in _thread_setters():
        set_threads(count)


@functools.cache
def _thread_setters() -> tuple[Callable[[int], object], ...]:
    """Return the functions of OpenMP and MKL that set the number of threads of the calling thread.

    If OpenMP's is not found, return PyTorch's own function instead.
    """
    setters: dict[str, Callable[[int], object]] = {}
    # None stands for the global namespace, where preloaded libraries are found, so it takes precedence.
    for library, name in product(
        (getattr(torch._C, "__file__", None), None), ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    ):
        # MKL may be missing. On Windows, None raises TypeError, and the dependencies of a library are not searched.
        with suppress(OSError, AttributeError, TypeError):
            setters[name] = getattr(ctypes.CDLL(library), name)
    return tuple(setters.values()) if "omp_set_num_threads" in setters else (torch.set_num_threads,)


def disable_cudnn_attention() -> None:
    """Configure PyTorch for training on a GPU with batches of many shapes.

    This disables cuDNN attention, which builds a new plan for each shape.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def cudnn_attention_disabled() -> Iterator[None]:
    """Call :func:`disable_cudnn_attention`, and restore the setting at the end of the block."""
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    disable_cudnn_attention()
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware multiplies bfloat16 matrices faster than float32 matrices.

    On processors, AMX does, and AMD's AVX-512 BF16, which doubles the speed. Intel's AVX-512 BF16 without AMX, as in
    virtual machines that hide AMX, does not: its products are half as fast as those in float32, training steps take
    1.3 times as long, and decoding 1.5 to 1.8 times (docs/log.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = _processor_features()
    return "amx_bf16" in features or ("avx512_bf16" in features and "Intel" not in processor_name())


def processor_has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, fast or not."""
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(_processor_features())


@functools.cache
def _processor_features() -> frozenset[str]:
    reported: Mapping[str, object] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if "avx512_bf16" in reported:
        return frozenset(name for name, has_feature in reported.items() if has_feature)
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:  # this PyTorch does not report it
        return frozenset(next((line for line in file if line.startswith("flags")), "").split())
    return frozenset()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return a context manager that sets the precision of matrix products. "auto" means bfloat16 if it is faster."""
    if precision == "bfloat16" or (precision == "auto" and has_fast_bfloat16(device)):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


@functools.cache
def processor_name() -> str:
    """Return the model name of the processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def measure_matmul_gflops(dtype: torch.dtype, device: torch.device) -> float:
    """Measure the speed of multiplying two 2048 x 2048 matrices, in GFLOP/s, as the best of ten runs."""
    a = torch.randn(2048, 2048, device=device).to(dtype)
    best = 0.0
    for _ in range(10):
        begin = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * 2048**3 / (time.perf_counter() - begin) / 1e9)
    return best


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks for later allocations instead of returning them to the system.

    Otherwise each training step and each decoding batch maps and zeroes its memory again, page by page, which can take
    a third of the time of a training step. This changes the whole process, so only commands and Headway's own worker
    processes call it.
    """
    global _keeps_freed_memory
    if libc := _glibc():
        _keeps_freed_memory = True
        # Older versions of glibc accept at most 32 MiB.
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) or libc.mallopt(_M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Return all free pages of the glibc heap to the system if :func:`keep_freed_memory` is in effect.

    Batches differ in shape, so the blocks that :func:`keep_freed_memory` keeps fragment the heap. Without regular
    calls, the heap of a small model grew from 2 to 5 GiB in a thousand steps, with only a fifth of it in use.
    """
    if _keeps_freed_memory and (libc := _glibc()):
        libc.malloc_trim(0)


def move_to_huge_pages(*, shares_weights: bool = False) -> None:
    """Move this process's private memory to huge pages (MADV_COLLAPSE, Linux 6.1).

    Python's objects are scattered over thousands of pages. After a few idle milliseconds, neither the objects nor their
    page table entries are in the processor's caches. Huge pages make the page tables 512 times smaller. Memory that is
    marked with MADV_HUGEPAGE is skipped. Does nothing if huge pages are unavailable or disabled.

    Args:
        shares_weights: Whether the process shares weights with its parent. Moving the weights would copy them, so
            nothing is moved unless the heap is marked with MADV_HUGEPAGE (set by ``glibc.malloc.hugetlb=1``): only then
            are the weights skipped as well.
    """
    libc = _glibc()
    if libc is None:
        return
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="latin-1")
        smaps = Path("/proc/self/smaps").read_text(encoding="latin-1")
    except OSError:  # this system does not have these files
        return
    marked, unmarked = list[re.Match[str]](), list[re.Match[str]]()
    for region in _PRIVATE_REGION.finditer(smaps):
        (marked if "hg" in region["flags"].split() else unmarked).append(region)
    heap_is_marked = any(region["name"] == "[heap]" for region in marked)
    if "[never]" in setting or (shares_weights and not heap_is_marked):
        return
    for region in unmarked:
        start, end = int(region["start"], 16), int(region["end"], 16)
        if end - start >= _MIN_HUGE_PAGE:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
    except OSError:  # another C library
        return None
