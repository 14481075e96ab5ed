"""The process that loads the models, and forks the workers.

Workers share the memory of the loaded models with the loader and with each other, because a forked process copies only
the pages that it writes to. A worker that ends is replaced in milliseconds. The loader computes nothing after loading,
and has only one thread, so that forking it is safe.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.serve.messages import FORK, Exited, Forked, Loaded, LoadFailed, ModelInfo, ModelSpec, encode, receive
from headway.serve.worker import run_worker

_DECODING_KINDS = ("translation", "language_model")  # models of other kinds have no precision of decoding


def main() -> None:
    """Serve the connection whose file descriptor is the program's argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the service decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    specs: list[ModelSpec] = receive(control)
    try:
        models = {spec.name: _load(spec) for spec in specs}
    except (HeadwayError, OSError, ImportError, MemoryError) as error:
        control.sendall(encode(LoadFailed(_sendable(error))))
        return
    try:
        control.sendall(encode(Loaded(tuple(_describe(name, model) for name, model in models.items()))))
    except BrokenPipeError:  # the service could not start
        return
    gc.collect()
    gc.freeze()  # collections in workers would write to every object, and so copy every page
    _serve(control, models)


def _load(spec: ModelSpec) -> Any:
    """Load a model, and use it once, so that its weights are converted and its kernels compiled before the fork."""
    from headway.bundle import read_config
    from headway.tasks import load

    decodes = read_config(Path(spec.folder)).task.kind in _DECODING_KINDS
    model = load(spec.folder, **(spec.settings if decodes else {}))
    model.warm_up()
    return model


def _describe(name: str, model: Any) -> ModelInfo:
    return ModelInfo(name, model.bundle.task.kind, **model.describe())


def _sendable(error: Exception) -> Exception:
    return error if isinstance(error, HeadwayError) else HeadwayError(f"{type(error).__name__}: {error}")


def _serve(control: socket.socket, models: dict[str, Any]) -> None:
    """Fork a worker for each socket that arrives, and report the workers that end."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    children: dict[int, int] = {}  # file descriptor -> process
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                message, descriptors, *_ = socket.recv_fds(control, 1, 1)
                if message != FORK:  # the service has ended
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                pid = os.fork()
                if not pid:
                    selector.close()
                    control.close()
                    _become_worker(descriptors[0], models)
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


def _become_worker(descriptor: int, models: dict[str, Any]) -> None:
    status = 1
    try:
        run_worker(socket.socket(fileno=descriptor), models)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
