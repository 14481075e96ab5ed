"""The processes that load the models and fork the workers.

Workers share the memory of the loaded models with the loader and with each other, because a forked process copies only
the pages that it writes to. A worker that ends is replaced within milliseconds. A loader computes nothing after loading
and has only one thread, so that it can fork safely.

The first loader loads the permanently loaded models. For each model that is loaded on demand, it forks another loader,
which shares the permanently loaded models without a copy and does not have to import modules again. When this loader
ends, all memory of its model is released.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headway.errors import HeadwayError
from headway.serve.model_info import ModelInfo, ModelSpec
from headway.serve.workers.messages import WORKER, Exited, Forked, ForkFailed, LoadFailed, ModelsLoaded, encode, receive
from headway.serve.workers.worker import run_worker

if TYPE_CHECKING:
    from headway.bundle import AnyBundle

DECODING_CAPABILITIES = ("translates", "continues")  # of models that decode, whose precision can be configured


def main() -> None:
    """Serve the connection whose file descriptor is given as the command-line argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the service handles it
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _run(control, {})


def _run(control: socket.socket, inherited: dict[str, Any]) -> None:
    """Load the models that the service requests, and fork processes until it closes the connection."""
    try:
        specs: list[ModelSpec] = receive(control)
    except EOFError:
        return
    try:
        import torch

        from headway import kernels
        from headway.bundle import load_without_weights

        # Import these modules now, so that their memory is not attributed to a model.
        from headway.engine import int8_check  # noqa: F401
        from headway.tasks import load  # noqa: F401

        models, num_bytes, notes = dict(inherited), {}, []
        for spec in specs:
            if not spec.on_demand:
                before = _anonymous_bytes()
                models[spec.name] = _load(spec)
                num_bytes[spec.name] = max(spec.stored_bytes, _anonymous_bytes() - before)
                if note := _precision_note(spec, models[spec.name]):
                    notes.append(f"the model {spec.name} {note}")
        precisions = {spec.load_options.get("precision") for spec in specs if not spec.on_demand}
        if "auto" in precisions and (reason := kernels.unavailable_reason()):
            notes.append(f"models compute in bfloat16 or float32 ({reason})")
        infos = [
            describe_model(
                spec.name, load_without_weights(Path(spec.folder)) if spec.on_demand else models[spec.name].bundle
            )
            for spec in specs
        ]
    except (HeadwayError, OSError, ImportError, MemoryError) as error:
        control.sendall(encode(LoadFailed(_sendable(error))))
        return
    try:
        has_gpu = torch.cuda.is_available()
        control.sendall(encode(ModelsLoaded(tuple(infos), num_bytes, tuple(notes), has_gpu)))
    except BrokenPipeError:  # the service failed to start or no longer needs the models
        return
    gc.collect()
    gc.freeze()  # otherwise garbage collection in workers would write to every object and so copy every shared page
    _serve(control, models)


def _anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def _load(spec: ModelSpec) -> Any:
    """Load a model and use it once, so that its weights are converted and its kernels are compiled before the fork.

    The model is loaded on the CPU, because CUDA does not work in a process forked from a process that has used CUDA.
    """
    from headway.bundle import read_config
    from headway.hardware import keep_freed_memory
    from headway.tasks import load

    decodes = read_config(Path(spec.folder)).capability in DECODING_CAPABILITIES
    model = load(spec.folder, device="cpu", **(spec.load_options if decodes else {}))
    if decodes:
        keep_freed_memory()  # the workers inherit it
    model.warm_up()
    return model


def _precision_note(spec: ModelSpec, model: Any) -> str | None:
    """Return a note for the log about a model's precision: why it is not int8, or why int8 is not recommended."""
    from headway.engine.int8_check import ChoosesPrecision, read_int8_check

    if not isinstance(model, ChoosesPrecision):
        return None
    if spec.load_options.get("precision") != "int8":
        return model.precision_note()
    check = read_int8_check(Path(spec.folder))
    return None if check is None or check.passed else f"generates in int8, as configured: {check.describe()}"


def describe_model(name: str, bundle: AnyBundle) -> ModelInfo:
    """Return the description of a model."""
    defaults: dict[str, Any] = {"search": bundle.search, "generation": bundle.generation}
    return ModelInfo(name, bundle.task.kind, bundle.capability, **bundle.describe(), **defaults)


def _sendable(error: Exception) -> Exception:
    return error if isinstance(error, HeadwayError) else HeadwayError(f"{type(error).__name__}: {error}")


def _serve(control: socket.socket, models: dict[str, Any]) -> None:
    """Fork a process for each socket received from the service, and report the processes that end."""
    children: dict[int, int] = {}  # file descriptor -> process
    with contextlib.suppress(ConnectionError):  # the service has ended
        _serve_until_closed(control, models, children)
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve_until_closed(control: socket.socket, models: dict[str, Any], children: dict[int, int]) -> None:
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                message, descriptors, *_ = socket.recv_fds(control, 1, 1)
                if not message:  # the service no longer needs these processes
                    return
                try:
                    pid = os.fork()
                except OSError as error:
                    os.close(descriptors[0])
                    control.sendall(encode(ForkFailed(str(error))))
                    continue
                if not pid:
                    selector.close()
                    control.close()
                    for watched in children:
                        os.close(watched)
                    _become(run_worker if message == WORKER else _run, descriptors[0], models)
                os.close(descriptors[0])
                watched = os.pidfd_open(pid)
                children[watched] = pid
                selector.register(watched, selectors.EVENT_READ)
                control.sendall(encode(Forked(pid)))
            else:
                watched = key.fd
                selector.unregister(watched)
                os.close(watched)
                pid, status = os.waitpid(children.pop(watched), 0)
                control.sendall(encode(Exited(pid, os.waitstatus_to_exitcode(status))))


def _become(work: Callable[[socket.socket, dict[str, Any]], None], descriptor: int, models: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        work(socket.socket(fileno=descriptor), models)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
