"""Download models from the Hugging Face Hub. This needs the package huggingface_hub (extra `hf`)."""

from __future__ import annotations

from pathlib import Path

from triform.errors import CheckpointError, install_command

HUB_PREFIX = "hub:"
ALLOW_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "pytorch_model*.bin")


def resolve_model_path(name: str | Path) -> Path:
    """Return the folder of a model. A model named `hub:OWNER/NAME` is downloaded first."""
    if not str(name).startswith(HUB_PREFIX):
        return Path(name).expanduser()
    repository = str(name).removeprefix(HUB_PREFIX)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"{name}: downloading needs the package huggingface_hub; install it with {install_command('hf')}, "
            "or give a folder"
        ) from None
    try:
        return Path(snapshot_download(repository, allow_patterns=list(ALLOW_PATTERNS)))
    except Exception as error:  # networks, servers and disks fail in many ways
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{name} cannot be downloaded ({reason}); without a network, give a folder that holds the model"
        ) from None
