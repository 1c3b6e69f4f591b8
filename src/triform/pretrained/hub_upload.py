"""Upload an exported folder to the Hugging Face Hub with its own client, huggingface_hub (extra `hf`)."""

from __future__ import annotations

import re
from pathlib import Path

from triform.errors import CheckpointError, ConfigError, require_package
from triform.io.run_layout import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    DATA_FOLDER,
    SHARD_FILES,
    TENSORS_FILE,
    TOKENS_FOLDER,
)

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# Never uploaded, should they be in the folder or below it: training state, copies of data, hidden files. In these
# patterns, * also stands for slashes.
IGNORED_PATTERNS = [
    *(f"{start}{name}/*" for name in (CHECKPOINTS_FOLDER, DATA_FOLDER, TOKENS_FOLDER) for start in ("", "*/")),
    *(f"{start}{name}" for name in (TENSORS_FILE, SHARD_FILES, ".*") for start in ("", "*/")),
    "*.pt",
    "*optimizer*",
]


def push_folder(folder: Path, repository: str, *, private: bool = False, endpoint: str | None = None) -> str:
    """Create a model repository if needed, upload the files of an exported folder, and return its address.

    Args:
        folder: A folder that `triform convert export` has written.
        repository: OWNER/NAME.
        private: Make a new repository private.
        endpoint: The address of the Hub. The default is that of huggingface_hub, which reads HF_ENDPOINT.

    Raises:
        ConfigError: The name of the repository is invalid, or huggingface_hub is missing.
        CheckpointError: The folder is not an exported model, there is no token, or the upload fails.
    """
    if not REPOSITORY.fullmatch(repository):
        raise ConfigError(f"{repository} is not the name of a repository; write it as OWNER/NAME")
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder} is a run folder; export it first with triform convert export")
    if not (folder / "README.md").is_file():
        raise CheckpointError(f"{folder} has no README.md, so triform convert export has not written it")
    require_package("huggingface_hub", extra="hf", purpose="uploading a model")
    from huggingface_hub import HfApi, get_token

    if not get_token():
        raise CheckpointError("there is no token of the Hugging Face Hub; run hf auth login, or set HF_TOKEN")
    client = HfApi(endpoint=endpoint)
    try:
        url = client.create_repo(repository, private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Upload a model exported by Triform",
            ignore_patterns=IGNORED_PATTERNS,
        )
    except Exception as error:  # networks and servers fail in many ways
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{folder} cannot be uploaded to {repository} ({reason})") from None
    return str(url)
