"""Writing files so that a crash, a kill or a full disk leaves the old ones."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the file, flush to disk, then rename over it. What earlier writers of this file that were killed
    have left beside it is taken away."""
    data = content.encode() if isinstance(content, str) else content
    _clear(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=f".{_writer()}.tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _writer() -> str:
    """This process, among those that may share a disk."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', platform.node())}.{os.getpid()}"


def _clear(path: Path) -> None:
    """Remove temporaries of this file whose writer, on this machine, is no more."""
    host, _ = _writer().rsplit(".", 1)
    known = re.compile(rf"\.{re.escape(path.name)}\.[^.]+\.{re.escape(host)}\.(\d+)\.tmp")
    for entry in os.scandir(path.parent):
        found = known.fullmatch(entry.name)
        if found and not _alive(int(found[1])):
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
