"""The Open Inference Protocol, version 2, over HTTP, with binary tensor data.

See https://github.com/kserve/open-inference-protocol, and https://github.com/triton-inference-server/server for the
extensions ``binary_tensor_data`` and ``classification``. Each model has one input tensor of texts, ``text`` (BYTES).
The output tensors and the supported request parameters depend on the model's task:

- translation: outputs ``translation``; parameters ``source_language``, ``target_language`` and ``markup`` (html or xml)
- classification: outputs ``label``, ``probability`` and ``probabilities``, which has an additional dimension of labels
- language models: outputs ``continuation`` and ``finish_reason``; parameters are the fields of
  :class:`headway.predict.GenerationOptions` that apply to a single continuation
- masked language models: outputs ``filled`` and ``probability``, which have an additional dimension of fillings;
  parameter ``top``

All other output tensors have the shape of ``text``. Each model has a single version, "1".
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.decode.generation_options import GenerationOptions
from headway.kinds import Capability
from headway.predict.markup.html import MarkupKind
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import add_text_number_to_errors, refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, choose_languages, parse_fields, parse_json_object
from headway.serve.clients import Client
from headway.serve.cost import cost_of_fillings, cost_of_generation
from headway.serve.errors import BadRequestError, TooLargeError, UnknownModelError
from headway.serve.model_info import ModelInfo
from headway.serve.service import Service
from headway.version import __version__

_VERSION, _INPUT = "1", "text"
_EXTENSIONS = ("binary_tensor_data", "classification")
_HEADER_LENGTH = "Inference-Header-Content-Length"
_ZLIB_OR_GZIP = 47  # window size that makes zlib detect the format
_LENGTH = struct.Struct("<I")
_MAX_DIMENSIONS = 8
_MAX_FILLINGS = 100
_MAX_DIGITS = 20
# Triton parameters, and MLServer's content_type, that have no effect on the result. Most of them control scheduling;
# Headway's models have no sequences of requests.
_WITHOUT_EFFECT = {
    "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "content_type",
}  # fmt: skip


def _key(head: HTTPConnection) -> str | None:
    """Return KEY in ``Authorization: Bearer KEY``, or the password in ``Authorization: Basic``."""
    basic = authorization(head, "basic")
    if basic is None:
        return authorization(head, "bearer")
    try:
        return base64.b64decode(basic).decode().partition(":")[2]
    except ValueError:
        raise BadRequestError("the header Authorization is not valid") from None


KEY_LOCATION = KeyLocation(_key, public_paths=re.compile("/v2|/v2/health/(?:live|ready)"))


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _OpenInference(service)
    model = "/v2/models/{name:path}"
    return [
        Route("/v2", api.server, methods=["GET"]),
        Route("/v2/health/live", api.live, methods=["GET"]),
        Route("/v2/health/ready", api.ready, methods=["GET"]),
        *(
            route
            for path in (f"{model}/versions/{{version}}", model)
            for route in (
                Route(f"{path}/ready", api.model_ready, methods=["GET"]),
                Route(f"{path}/infer", api.infer, methods=["POST"]),
                Route(path, api.model, methods=["GET"]),
            )
        ),
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return JSONResponse({"error": message}, status, headers)


# Request bodies.


class _TensorParameters(BaseModel):
    binary_data: bool | None = None
    binary_data_size: int | None = Field(None, ge=0)
    classification: int | None = Field(None, ge=1)
    shared_memory_region: None = None  # refused: Triton extensions that require the client on the same machine


class _InputTensor(BaseModel):
    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MAX_DIMENSIONS, min_length=1)]
    datatype: Literal["BYTES"]
    parameters: _TensorParameters = _TensorParameters()
    data: Any = None


class _RequestedOutput(BaseModel):
    name: str
    parameters: _TensorParameters = _TensorParameters()


class _InferenceFields(BaseModel):
    id: str | None = None
    parameters: dict[str, Any] = Field({}, max_length=100)
    inputs: Annotated[list[_InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[_RequestedOutput], Field(max_length=10)] = []


class _TranslationParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source_language: str | None = None
    target_language: str | None = None
    markup: MarkupKind | None = None


class _FillParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    top: int = Field(5, ge=1, le=_MAX_FILLINGS)


class _NoParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class _OutputTensor:
    """A tensor in a reply.

    Attributes:
        name: Name of the tensor.
        datatype: BYTES or FP32.
        shape: Shape of the tensor.
        data: The elements in row-major order.
        labels: Labels for the elements of the last dimension. With labels, the tensor may be sent as classifications.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Sequence[str] | Sequence[float]
    labels: Sequence[str] = ()

    def classified(self, count: int) -> _OutputTensor:
        """Return the ``count`` best classes of each row, formatted as ``VALUE:INDEX:LABEL``."""
        values, width = list(map(float, self.data)), self.shape[-1]
        count = min(count, width)
        data = [
            f"{values[index]:f}:{index - row}:{self.labels[index - row]}"
            for row in range(0, len(values), width)
            for index in sorted(range(row, row + width), key=values.__getitem__, reverse=True)[:count]
        ]
        return _OutputTensor(self.name, "BYTES", (*self.shape[:-1], count), data)

    def to_bytes(self) -> bytes:
        """Return the elements as binary tensor data."""
        if self.datatype == "FP32":
            return struct.pack(f"<{len(self.data)}f", *self.data)
        encoded = [str(element).encode() for element in self.data]
        return b"".join(chain.from_iterable((_LENGTH.pack(len(element)), element) for element in encoded))


# Tasks.


@dataclass(frozen=True)
class _InferenceCall:
    """A parsed request, with its model and client."""

    client: Client
    model: ModelInfo
    texts: Sequence[str]
    shape: tuple[int, ...]
    parameters: dict[str, Any]

    def tensor(self, name: str, data: Sequence[str]) -> _OutputTensor:
        """Return an output tensor with one string for each text."""
        return _OutputTensor(name, "BYTES", self.shape, data)


@dataclass(frozen=True)
class _InferenceTask:
    """A task: its output tensors, and the function that computes them.

    Attributes:
        outputs: Name and type of each output tensor, and whether it has an additional dimension.
        run: Calls a model, and returns the output tensors.
    """

    outputs: tuple[tuple[str, str, bool], ...]
    run: Callable[[Service, _InferenceCall], Awaitable[list[_OutputTensor]]]


async def _translate(service: Service, call: _InferenceCall) -> list[_OutputTensor]:
    fields = parse_fields(_TranslationParameters, call.parameters)
    source, target = choose_languages(call.model, fields.source_language, fields.target_language)
    options = TranslateOptions(markup=fields.markup)
    translations, _ = await service.translate(call.client, call.texts, source, target, call.model.name, options=options)
    refuse_failed_texts(translations)
    return [call.tensor("translation", [translation.text for translation in translations])]


async def _classify(service: Service, call: _InferenceCall) -> list[_OutputTensor]:
    parse_fields(_NoParameters, call.parameters)
    classifications = await service.call(call.client, call.model, "classify_each", call.texts, call.texts)
    refuse_failed_texts(classifications)
    labels = call.model.labels
    every = [classification.probabilities[label] for classification in classifications for label in labels]
    return [
        call.tensor("label", [classification.label for classification in classifications]),
        _OutputTensor(
            "probability", "FP32", call.shape, [classification.probability for classification in classifications]
        ),
        _OutputTensor("probabilities", "FP32", (*call.shape, len(labels)), every, labels),
    ]


async def _generate(service: Service, call: _InferenceCall) -> list[_OutputTensor]:
    options = GenerationOptions.from_defaults(call.model.generation, call.parameters, "parameters")
    if options.n > 1:
        raise BadRequestError("n: only one continuation of each text can be returned")
    cost, prompts = cost_of_generation(call.texts, options), list(call.texts)
    work = service.call(call.client, call.model, "generate", (), prompts, cost=cost, **call.parameters)
    best = [continuations[0] for continuations in await work]
    return [
        call.tensor("continuation", [continuation.text for continuation in best]),
        call.tensor("finish_reason", [continuation.finish_reason for continuation in best]),
    ]


async def _fill(service: Service, call: _InferenceCall) -> list[_OutputTensor]:
    top = parse_fields(_FillParameters, call.parameters).top
    async with service.admit(call.client, call.model, cost_of_fillings(call.texts, top)) as admitted:
        fillings = []
        for index, text in enumerate(call.texts):
            with add_text_number_to_errors(index, len(call.texts)):
                fillings.append(await service.call(admitted, call.model, "fill", (), text, top, None))
    width = min(map(len, fillings), default=0)  # less than ``top`` if the vocabulary is smaller
    shape = (*call.shape, width)
    best = [filling for text_fillings in fillings for filling in text_fillings[:width]]
    return [
        _OutputTensor("filled", "BYTES", shape, [filling.text for filling in best]),
        _OutputTensor("probability", "FP32", shape, [filling.probability for filling in best]),
    ]


_TASKS: dict[Capability, _InferenceTask] = {
    "translates": _InferenceTask((("translation", "BYTES", False),), _translate),
    "labels": _InferenceTask(
        (("label", "BYTES", False), ("probability", "FP32", False), ("probabilities", "FP32", True)), _classify
    ),
    "continues": _InferenceTask((("continuation", "BYTES", False), ("finish_reason", "BYTES", False)), _generate),
    "fills": _InferenceTask((("filled", "BYTES", True), ("probability", "FP32", True)), _fill),
}


class _OpenInference:
    def __init__(self, service: Service) -> None:
        self._service = service

    # Routes of the server.

    async def server(self, _: Request) -> Response:
        return JSONResponse({"name": "headway", "version": __version__, "extensions": _EXTENSIONS})

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        reason = self._service.unavailable_reason
        return error_reply(reason, 503) if reason else JSONResponse({"ready": True})

    # Routes of models.

    async def model_ready(self, request: Request) -> Response:
        model, reason = self._model(request), self._service.unavailable_reason
        return error_reply(reason, 503) if reason else JSONResponse({"name": model.name, "ready": True})

    async def model(self, request: Request) -> Response:
        model = self._model(request)
        outputs = [
            {"name": name, "datatype": datatype, "shape": [-1, -1] if is_wider else [-1]}
            for name, datatype, is_wider in _TASKS[model.capability].outputs
        ]
        return JSONResponse(
            {
                "name": model.name,
                "versions": [_VERSION],
                "platform": "headway",
                "inputs": [{"name": _INPUT, "datatype": "BYTES", "shape": [-1]}],
                "outputs": outputs,
            }
        )

    async def infer(self, request: Request) -> Response:
        client, model = client_of(request), self._model(request)
        fields, rest = await _split(request, await self._body(request))
        texts = _texts(fields.inputs[0], rest)
        _check_outputs(fields, model)
        self._service.sizes.check_texts(texts)
        parameters = {name: value for name, value in fields.parameters.items() if name not in _WITHOUT_EFFECT}
        call = _InferenceCall(client, model, texts, tuple(fields.inputs[0].shape), parameters)
        tensors = await cancel_on_disconnect(request, _TASKS[model.capability].run(self._service, call))
        head = {"model_name": model.name, "model_version": _VERSION} | ({"id": fields.id} if fields.id else {})
        return _reply(head, fields, tensors)

    def _model(self, request: Request) -> ModelInfo:
        name, version = request.path_params["name"], request.path_params.get("version", _VERSION)
        if version != _VERSION:
            raise UnknownModelError(f"There is no version {version} of the model {name}")
        return self._service.find_model(name, *_TASKS)

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request, decompressed if necessary."""
        body, encoding = await request.body(), request.headers.get("content-encoding", "identity").lower()
        if encoding == "identity":
            return body
        if encoding not in ("gzip", "deflate"):
            raise BadRequestError("the body has an unknown Content-Encoding; it may be gzip or deflate")
        limit, decompressor = self._service.config.limits.body_bytes, zlib.decompressobj(_ZLIB_OR_GZIP)
        try:
            body = decompressor.decompress(body, limit + 1)
        except zlib.error:
            raise BadRequestError("the body cannot be decompressed") from None
        if len(body) > limit:
            raise TooLargeError(f"The body has more than {limit:,} bytes")
        if not decompressor.eof:
            raise BadRequestError("the compressed body ends too early")
        return body


# Parsing of requests.


async def _split(request: Request, body: bytes) -> tuple[_InferenceFields, bytes]:
    """Return the JSON fields of a request, and the binary data that follows them."""
    length = request.headers.get(_HEADER_LENGTH)
    if length is None:
        return parse_fields(_InferenceFields, await parse_json_object(body)), b""
    if not length.isdecimal() or len(length) > _MAX_DIGITS or int(length) > len(body):
        raise BadRequestError(f"{_HEADER_LENGTH} is not the length of a part of the body")
    end = int(length)
    return parse_fields(_InferenceFields, await parse_json_object(body[:end])), body[end:]


def _texts(tensor: _InputTensor, binary_data: bytes) -> list[str]:
    """Return the elements of a tensor, from its JSON data or from ``binary_data``."""
    if tensor.name != _INPUT:
        raise BadRequestError(f"unexpected inference input '{tensor.name}'; expected '{_INPUT}'")
    size = tensor.parameters.binary_data_size
    if (size or 0) != len(binary_data):
        raise BadRequestError(f"the body has {len(binary_data):,} bytes of binary data; expected {size or 0:,}")
    elements = _flat(tensor.data) if size is None else _read_elements(binary_data)
    if not elements or math.prod(tensor.shape) != len(elements):
        raise BadRequestError(f"'{_INPUT}' has {len(elements):,} elements, which does not match its shape")
    return elements


def _flat(data: Any) -> list[str]:
    """Return the elements of nested lists as one list."""
    while isinstance(data, list) and data and all(isinstance(item, list) for item in data):
        data = list(chain.from_iterable(data))
    if not isinstance(data, list) or not all(isinstance(item, str) for item in data):
        raise BadRequestError(f"the data of '{_INPUT}' is not a list of strings")
    return data


def _read_elements(data: bytes) -> list[str]:
    """Return the elements in binary tensor data. Each element is preceded by its length."""
    elements, position = [], 0
    try:
        while position < len(data):
            (length,) = _LENGTH.unpack_from(data, position)
            start, position = position + _LENGTH.size, position + _LENGTH.size + length
            if position > len(data):
                raise BadRequestError(f"an element of '{_INPUT}' is longer than the data")
            elements.append(data[start:position].decode())
    except (struct.error, UnicodeDecodeError):
        raise BadRequestError(
            f"the binary data of '{_INPUT}' does not consist of length-prefixed UTF-8 strings"
        ) from None
    return elements


def _check_outputs(fields: _InferenceFields, model: ModelInfo) -> None:
    """Raise :class:`BadRequestError` if a requested output does not exist or has no classes."""
    has_classes = {name: is_wider and bool(model.labels) for name, _, is_wider in _TASKS[model.capability].outputs}
    for wanted in fields.outputs:
        if wanted.name not in has_classes:
            raise BadRequestError(f"unexpected inference output '{wanted.name}'; expected {', '.join(has_classes)}")
        if wanted.parameters.classification is not None and not has_classes[wanted.name]:
            raise BadRequestError(f"the output '{wanted.name}' has no classes")


# Contents of replies.


def _reply(own: dict[str, Any], fields: _InferenceFields, tensors: Sequence[_OutputTensor]) -> Response:
    by_name = {tensor.name: tensor for tensor in tensors}
    outputs, parts = [], []
    default = fields.parameters.get("binary_data_output") is True
    for wanted in fields.outputs or [_RequestedOutput(name=name) for name in by_name]:
        tensor = by_name[wanted.name]
        if wanted.parameters.classification is not None:
            tensor = tensor.classified(wanted.parameters.classification)
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        is_binary = wanted.parameters.binary_data
        if default if is_binary is None else is_binary:
            parts.append(tensor.to_bytes())
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = tensor.data
        outputs.append(output)
    if not parts:
        return JSONResponse(own | {"outputs": outputs})
    head = json.dumps(own | {"outputs": outputs}).encode()
    headers = {_HEADER_LENGTH: str(len(head))}
    return Response(b"".join([head, *parts]), media_type="application/octet-stream", headers=headers)
