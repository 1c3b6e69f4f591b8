"""The layout of a run folder: file names and the format number. No torch, no NumPy."""

from __future__ import annotations

RUN_FORMAT = 2  # written into config.toml; another format is refused
CONFIG_FILE = "config.toml"
MODEL_FILE = "model.safetensors"
ADAPTER_FILE = "adapter.safetensors"
METRICS_FILE = "metrics.jsonl"
REPORT_FILE = "report.html"
DIGESTS_FILE = "digests.json"
SOURCES_FILE = "sources.json"  # where the settings of config.toml come from
CHECKPOINTS_FOLDER = "checkpoints"
TOKENS_FOLDER = "tokens"
DATA_FOLDER = "data_copies"  # copies of data that was passed from Python
TENSORS_FILE, STATE_FILE = "tensors.safetensors", "state.json"
TRACKER_FOLDERS = ("tensorboard", "wandb")  # where trackers write by default
# Folders that are written after config.toml. In a folder without config.toml they belong to something else.
LATER_FOLDERS = (CHECKPOINTS_FOLDER, *TRACKER_FOLDERS)
# Files that have a digest, in a run folder and in a checkpoint folder.
RUN_FILES = (CONFIG_FILE, "tokenizer*.json", MODEL_FILE)
SHARD_FILES = "tensors-*.safetensors"  # instead of TENSORS_FILE, if several processes write parts of the tensors
CHECKPOINT_FILES = (TENSORS_FILE, SHARD_FILES, STATE_FILE)
# All files that a run may write to its folder, in the order in which they are removed. LATER_FOLDERS are first, so
# that an interrupted removal leaves none of them without config.toml.
RUN_FOLDER_PATTERNS = (
    *LATER_FOLDERS,
    *RUN_FILES,
    DIGESTS_FILE,
    SOURCES_FILE,
    ADAPTER_FILE,
    METRICS_FILE,
    REPORT_FILE,
    TOKENS_FOLDER,
    DATA_FOLDER,
)
# The last line of every config.toml. A file without it, or without its final newline, is incomplete.
LAST_CONFIG_KEY = "decode.max_new_tokens"
