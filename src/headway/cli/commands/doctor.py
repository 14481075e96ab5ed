"""``headway doctor``."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.UNDERSTAND


def doctor(
    compile_ahead: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the int8 kernels now, so that the first translation starts without delay."
        ),
    ] = False,
) -> None:
    """Report versions, device, default precisions and the measured speed of matrix products on this machine."""
    import torch

    from headway import kernels
    from headway.engine import choose_precision
    from headway.hardware import choose_device, has_fast_bfloat16, measure_matmul_gflops, processor_name
    from headway.version import __version__

    device = choose_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    bfloat16 = has_fast_bfloat16(device)
    print(f"headway   {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}")
    print(f"device    {device}: {name}, {torch.get_num_threads()} threads")
    print(f"training  in {'bfloat16' if bfloat16 else 'float32'} by default")
    reason = kernels.unavailable_reason()
    without = "" if reason is None or device.type != "cpu" else f"; not in int8 ({reason})"
    print(f"decoding  in {choose_precision('auto', device)} by default{without}")
    for dtype in (torch.float32, torch.bfloat16) if bfloat16 else (torch.float32,):
        rate = measure_matmul_gflops(dtype, device)
        print(f"products  {str(dtype).removeprefix('torch.')}: {rate:,.0f} GFLOP/s at 2048 x 2048 x 2048")
    if compile_ahead and reason is None:
        from headway.kernels.compile_ahead import compile_decoding_kernels

        print(f"kernels   compiled; cached in {' or '.join(compile_decoding_kernels())}")
    elif compile_ahead:
        print(f"kernels   none to compile: {reason}")
