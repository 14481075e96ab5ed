"""serve.toml, variables and options."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.serve.config import ModelConfig, model_name, read_config


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def key(name: str, text: str) -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{digest(text)}"\n'


def test_options_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'port = 1\nhost = "::1"\nworkers = 3\nmodels = [{ path = "m" }]\nlimits.texts = 7\nglossary_folder = "g"\n'
        'usage_file = "u.json"\n'
    )
    environment = {
        "HEADWAY_PORT": "2",
        "HEADWAY_HOST": "0.0.0.0",
        "HEADWAY_LIMITS__QUEUE_SECONDS": "9.5",
        "HEADWAY_X": "1",
    }
    config = read_config(path, {"port": 3, "workers": None, "models": []}, environment)
    assert (config.port, config.host, config.workers) == (3, "0.0.0.0", 3)
    assert (config.limits.queue_seconds, config.limits.texts) == (9.5, 7)
    assert config.models[0].path == str(tmp_path / "m")
    assert config.glossary_folder == str(tmp_path / "g")
    assert config.usage_file == str(tmp_path / "u.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"unknown key 'prot'; did you mean 'port'\?"),
        ("port = 99999", "port = 99999"),
        ("models = [{ path = 'a/best' }, { path = 'b/../a/best' }]", "two models are called 'a'"),
        ("models = [{ path = 'a' }]\nkeys = [{ name = 'x', sha256 = 'secret' }]", "sha256 = 'secret'"),
        ("", "no model to serve"),
        (f"models = [{{ path = 'a' }}]\nkeys = [{{ name = 'x', sha256 = '{digest('')}' }}]", "the digest of nothing"),
        (f"models = [{{ path = 'a' }}]\nkeys = [{{ name = 'x', sha256 = '{digest('foo')}' }}]", "the digest of foo"),
        (f"models = [{{ path = 'a' }}]\n{key('x', 'a')}{key('x', 'b')}", "two keys have the name 'x'"),
        (f"models = [{{ path = 'a' }}]\n{key('x', 'a')}{key('y', 'a')}", "two keys have the sha256"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(path, {}, {})


def test_names_of_models() -> None:
    assert model_name(ModelConfig(path="runs/de-en/best")) == "de-en"
    assert model_name(ModelConfig(path="models/opus")) == "opus"
    assert model_name(ModelConfig(path="models/opus", name="x")) == "x"


@pytest.mark.parametrize("device", ["cuda", "auto", "gpu", "cuda:0"])
def test_the_service_computes_on_the_cpu(tmp_path: Path, device: str) -> None:
    path = tmp_path / "serve.toml"
    models = 'models = [{ path = "m" }]\n'
    path.write_text(models + f'device = "{device}"\n')
    refused = f"device = '{device}': the service computes on the CPU.*omit device, or set it to 'cpu'"
    with pytest.raises(ConfigError, match=refused):
        read_config(path, {}, {})
    path.write_text(models + 'device = "cpu"\n')
    assert read_config(path, {}, {}).device == "cpu"
    for overrides, environment in (({"device": device}, {}), ({}, {"HEADWAY_DEVICE": device})):
        with pytest.raises(ConfigError, match=refused):
            read_config(path, overrides, environment)
