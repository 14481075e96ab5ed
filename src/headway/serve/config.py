"""The configuration of the service: serve.toml and HEADWAY_* environment variables, which take precedence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from headway.config import Config, read_toml
from headway.errors import ConfigError
from headway.interop.hub.names import HubName, parse_model_source
from headway.serve.hub_models import prepare_model_folder
from headway.serve.model_info import ModelSpec

ANY_HOST = "*"  # listen on all addresses of the machine
UNIX_PREFIX = "unix:"  # prefix of a host that is the path of a Unix socket
_PREFIX = "HEADWAY_"
_SHA256 = 64  # number of hexadecimal digits
# Keys whose digests are refused: empty input (sha256sum was called without a key), and a key that everyone knows.
_KNOWN_KEYS = {"": "nothing", "\n": "a line break", "foo": "foo", "foo\n": "foo and a line break"}
_KNOWN_DIGESTS = {sha256(key.encode()).hexdigest(): name for key, name in _KNOWN_KEYS.items()}


class ModelConfig(Config):
    """A model of the service."""

    path: str = Field(
        description="The model folder, or hf:NAME for a model on the Hugging Face Hub, which is downloaded and "
        "converted when the service first starts. Relative paths are relative to the folder of serve.toml."
    )
    name: str | None = Field(None, description="The model's name in the APIs. Default: the last parts of the path.")
    source: tuple[str, ...] = Field(
        (), description="Languages to translate from. Default: the model's source languages."
    )
    target: tuple[str, ...] = Field(
        (), description="Languages to translate into. Default: the model's target languages."
    )
    precision: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto",
        description="Precision of decoding. auto: int8 if the processor and the model support it, unless int8 "
        "noticeably changes the most probable tokens of an imported language model. int8 is an error if it is not "
        "supported. Classifiers and masked language models do not decode, and always compute in float32.",
    )
    load: Literal["start", "demand"] = Field(
        "start",
        description="When to load the model. start: when the service starts. demand: when a request needs the model. A "
        "model that was loaded on demand is unloaded when other models need its memory (limits.memory_mb).",
    )


class LimitsConfig(Config):
    """Limits on requests, jobs and memory. A request that exceeds a limit is refused before any work is done."""

    queue_seconds: float = Field(
        0.8,
        gt=0,
        description="Maximum estimated time that a request may have to wait for earlier work, in seconds. Requests "
        "that would wait longer get status 429 with Retry-After, unless the waiting work fits into the workers' "
        "batches. The work of each other key counts at most as much as the unfinished work of the request's own key.",
    )
    queue_tokens: int = Field(
        200_000,
        ge=1,
        description="Maximum amount of unfinished work, in estimated tokens. With several keys, a key may use as much "
        "as it leaves for the others, which is at most half.",
    )
    request_seconds: float = Field(60.0, gt=0, description="Time limit for processing a request.")
    receive_seconds: float = Field(
        30.0, gt=0, description="Time limit for a client to send its request, and to receive a reply that is ready."
    )
    connections: int = Field(2000, ge=1, description="Maximum number of open connections.")
    header_bytes: int = Field(65_536, ge=1024, description="Maximum size of a request's headers, including its URL.")
    body_bytes: int = Field(4 << 20, ge=1024, description="Maximum size of a request's body.")
    receiving_mb: float = Field(
        256.0,
        gt=0,
        description="Memory for all unanswered requests, in megabytes. A request counts with the length that its "
        "client announces or, if it is larger, the number of bytes that have arrived. Requests that exceed the limit "
        "get status 429. A key may use as much as it leaves for the others, which is at most half; without keys, the "
        "same applies to each address. One eighth of the memory is reserved for requests whose key is not known yet; "
        "their addresses share it in the same way. The first 8 kB of each request do not count, and a single request "
        "is always accepted.",
    )
    texts: int = Field(1024, ge=1, description="Maximum number of texts per request.")
    characters: int = Field(100_000, ge=1, description="Maximum number of characters per request.")
    jobs: int = Field(8, ge=0, description="Maximum number of bulk jobs to keep per key.")
    job_mb: float = Field(64.0, gt=0, description="Memory for the jobs of each key, in megabytes.")
    job_texts: int = Field(100_000, ge=1, description="Maximum number of texts per job.")
    job_characters: int = Field(1_000_000, ge=1, description="Maximum number of characters per job.")
    job_bytes: int = Field(8 << 20, ge=1024, description="Maximum size of the body of a request that creates a job.")
    job_seconds: float = Field(3600.0, gt=0, description="Time for which the result of a job or a document is kept.")
    documents: int = Field(8, ge=0, description="Maximum number of documents to keep per key.")
    document_bytes: int = Field(16 << 20, ge=1024, description="Maximum size of an uploaded document.")
    hypotheses: int = Field(
        128, ge=1, description="Maximum beam size, and maximum number of results or samples per text."
    )
    new_tokens: int = Field(100_000, ge=1, description="Maximum number of tokens that a request may ask to generate.")
    phrase_characters: int = Field(
        2000, ge=0, description="Maximum total number of characters in a request's phrases to include or ban."
    )
    glossaries: int = Field(1000, ge=0, description="Maximum number of glossaries that a key may create.")
    glossary_characters: int = Field(
        50_000_000, ge=0, description="Maximum total size of a key's glossaries, in characters."
    )
    glossary_entries: int = Field(
        100_000, ge=1, description="Maximum number of entries in a glossary for one pair of languages."
    )
    memory_mb: float | None = Field(
        None,
        gt=0,
        description="Memory for the weights of all models, in megabytes. Models that were loaded on demand are "
        "unloaded before the limit is exceeded, the least recently used model first. Default: no limit.",
    )
    load_seconds: float = Field(
        60.0, gt=0, description="Time limit for loading a model on demand, and for requests that wait for the model."
    )
    cache_mb: float = Field(
        0.0, ge=0, description="Size of the cache of translations, in megabytes. 0 disables the cache."
    )


class KeyConfig(Config):
    """An API key. The file contains its SHA-256, not the key itself."""

    name: str = Field(description="A unique name. The quota, glossaries and documents of the key belong to this name.")
    sha256: Annotated[
        str, Field(pattern=rf"^[0-9a-f]{{{_SHA256}}}$", description="SHA-256 of the key, in hexadecimal.")
    ]
    characters_per_month: int | None = Field(None, ge=0, description="Quota of characters per calendar month.")
    requests_per_minute: int | None = Field(None, ge=1, description="Maximum number of requests per minute.")
    priority: Literal["interactive", "bulk"] = Field(
        "interactive", description="Bulk requests wait until no other requests are waiting."
    )

    @field_validator("sha256")
    @classmethod
    def _is_of_a_secret(cls, digest: str) -> str:
        if digest in _KNOWN_DIGESTS:
            raise ValueError(
                f"this is the digest of {_KNOWN_DIGESTS[digest]}, not of a secret key; "
                "make one with: openssl rand -hex 24"
            )
        return digest


class ServeConfig(Config):
    """The configuration of ``headway serve``."""

    models: tuple[ModelConfig, ...] = Field((), description="The models to serve, at least one.")
    host: Annotated[str, Field(min_length=1)] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Address to listen on, or a list of addresses. The default can be reached only from this machine. "
        "* and :: mean all IPv4 and IPv6 addresses. unix:PATH is a Unix socket.",
    )
    port: int = Field(5000, ge=0, le=65535, description="Port to listen on. 0 means any free port.")
    unix_mode: str = Field(
        "600",
        pattern="^0?[0-7]{3}$",
        description="Permissions of a Unix socket, in octal: 600 allows only this user, 660 also allows its group.",
    )
    workers: int | None = Field(None, ge=1, description="Number of worker processes. Default: one per core.")
    device: Literal["cpu"] = Field(
        "cpu",
        description="Device to compute on. Only cpu is supported, because forked worker processes cannot use GPUs.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Values of the Host header to accept, in addition to the names of the loopback interface."
    )
    allowed_origins: tuple[str, ...] = Field((), description="Origins of web pages that may call the service (CORS).")
    root_path: str = Field("", description="Path prefix behind a reverse proxy.")
    pivot: bool = Field(
        True,
        description="Whether to combine two models that translate through a third language if no model translates a "
        "pair of languages directly.",
    )
    pivot_candidates: int = Field(
        1, ge=1, description="Number of translations into the third language to consider per text. 1 is fastest."
    )
    glossary_folder: str | None = Field(
        None,
        description="Folder in which to store the glossaries that clients create. Default: glossaries are lost when "
        "the service stops.",
    )
    usage_file: str | None = Field(
        None,
        description="File in which to store the character counts of the keys. Default: the counts are lost when the "
        "service stops.",
    )
    limits: LimitsConfig = LimitsConfig()
    keys: tuple[KeyConfig, ...] = Field((), description="API keys. Without keys, every request is accepted.")

    @field_validator("device", mode="before")
    @classmethod
    def _is_the_cpu(cls, device: object) -> object:
        if device != "cpu":
            raise ValueError(
                "the service computes on the CPU: its worker processes are forked, so that they share the memory of "
                "the models, and CUDA does not work in forked processes; omit device, or set it to 'cpu'"
            )
        return device

    @model_validator(mode="after")
    def _has_distinct_names(self) -> ServeConfig:
        names = [model_name(model) for model in self.models]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two models are called {twice!r}; set models.name")
        return self

    @model_validator(mode="after")
    def _has_distinct_keys(self) -> ServeConfig:
        for field, consequence in (("name", "share quota, glossaries and documents"), ("sha256", "be the same key")):
            count = Counter(getattr(key, field) for key in self.keys)
            twice = next((value for value, number in count.items() if number > 1), None)
            if twice is not None:
                raise ValueError(f"two keys have the {field} {twice!r}, and would {consequence}; change one of them")
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen on."""
        return (self.host,) if isinstance(self.host, str) else self.host

    @property
    def host_names(self) -> tuple[str, ...]:
        """The addresses to listen on, as they appear in the Host header of a request."""
        named = [host for host in self.hosts if host != ANY_HOST and not host.startswith(UNIX_PREFIX)]
        return tuple(f"[{host.strip('[]')}]" if ":" in host else host for host in named)

    def specs(self) -> list[ModelSpec]:
        """Return the models to load. Models on the Hub are downloaded and converted first, which may take long.

        Raises:
            HeadwayError: A model on the Hub cannot be downloaded or converted.
        """
        return [
            ModelSpec(
                model_name(model),
                str(prepare_model_folder(model.path)),
                {"precision": model.precision},
                on_demand=model.load == "demand",
            )
            for model in self.models
        ]


def model_name(model: ModelConfig) -> str:
    """Return the name of a model in the APIs: RUN for runs/RUN/best, otherwise the name of its folder."""
    if model.name is not None:
        return model.name
    path = parse_model_source(model.path)
    if isinstance(path, HubName):
        return path.title
    path = path.absolute()
    return path.parent.name if path.name in ("best", "average", "ema") and path.parent.name else path.name


def read_config(
    path: Path | None, overrides: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> ServeConfig:
    """Return the configuration in a file, overridden by environment variables and then by ``overrides``.

    HEADWAY_PORT sets ``port``, HEADWAY_LIMITS__QUEUE_SECONDS sets ``limits.queue_seconds``, and so on for all values
    that are not lists.

    Raises:
        ConfigError: A key or value is invalid, or no model is configured.
    """
    data = {} if path is None else read_toml(path)
    for key in ("glossary_folder", "usage_file"):
        if path is not None and isinstance(data.get(key), str):
            data[key] = str(path.parent / data[key])
    if path is not None and isinstance(data.get("models"), list):
        for model in data["models"]:
            if isinstance(model, dict) and isinstance(model.get("path"), str):
                model["path"] = str(parse_model_source(model["path"], base=path.parent))
    for name, value in environment.items():
        *sections, key = name.removeprefix(_PREFIX).lower().split("__")
        owner: Any = ServeConfig if not sections else {"limits": LimitsConfig}.get(sections[0])
        if name.startswith(_PREFIX) and owner is not None and key in owner.model_fields:
            section = data
            for part in sections:
                section = section.setdefault(part, {})
            section[key] = value
    data |= {key: value for key, value in overrides.items() if value not in (None, [])}
    config = ServeConfig.parse(data, str(path or "the options"))
    if not config.models:
        raise ConfigError("no model to serve; specify a model folder, or list models in a file for --config")
    return config
