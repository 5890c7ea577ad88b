"""Adapters on the Hugging Face hub: three small files up, two down."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from focus_kernels import FocusError


def download(name: str, **options: Any) -> Path:
    """The local copy of an adapter on the hub; options (revision, token, ...) as of its snapshot_download."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from .adapter import CARD, CONFIG, TENSORS

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, TENSORS, CARD], **options))
    except HFValidationError:
        raise FocusError(f"{name!r} is neither a directory nor a name on the hub ('owner/adapter')") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FocusError(f"{name!r} is not a directory here, and the hub did not give it: {reason}") from error


def upload(
    model: PreTrainedModel, name: str, *, private: bool | None = None, results: Mapping[str, Any] | None = None
) -> str:
    """Make the repository if needed and commit the adapter to it; returns its address."""
    from .adapter import save_adapter

    with tempfile.TemporaryDirectory() as directory:
        save_adapter(model, directory, results)
        return upload_folder(Path(directory), name, private=private)


def upload_folder(folder: Path, name: str, *, private: bool | None = None) -> str:
    """Commit a folder to a repository, made if needed; returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=str(folder),
            commit_message="Focus adapter",
            ignore_patterns=[".*.tmp*"],
        )
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FocusError(f"the hub did not take {name!r}: {reason}") from error
    return str(address)
