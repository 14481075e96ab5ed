"""``headway doctor``."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["doctor"]


def doctor() -> None:
    """Tell what this machine offers: versions, device, precision and the measured rate of matrix products."""
    import time
    from importlib.metadata import version

    import torch

    from headway.train.hardware import choose_device, computes_bfloat16

    device = choose_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    bfloat16 = computes_bfloat16(device)
    print(f"headway   {version('headway')}, PyTorch {torch.__version__}, Python {platform.python_version()}")
    print(f"device    {device}: {name}, {torch.get_num_threads()} threads")
    print(f"training  in {'bfloat16' if bfloat16 else 'float32'} by default")
    for dtype in (torch.float32, torch.bfloat16) if bfloat16 else (torch.float32,):
        a = torch.randn(2048, 2048, device=device).to(dtype)
        a @ a
        begin = time.perf_counter()
        for _ in range(5):
            a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        rate = 5 * 2 * 2048**3 / (time.perf_counter() - begin) / 1e9
        print(f"products  {str(dtype).removeprefix('torch.')}: {rate:,.0f} GFLOP/s at 2048 x 2048 x 2048")


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
