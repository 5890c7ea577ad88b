"""Writing files so that a crash, a kill or a full disk leaves the old ones."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the file, flush to disk, then rename over it."""
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


def fill_atomically(folder: Path, write: Callable[[Path], object]) -> None:
    """For writers that know nothing of this: `write` fills a folder of its own, whose files are then renamed into
    `folder`. Each of them is the old one or the new one, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder / "files")
    temporary = Path(tempfile.mkdtemp(prefix=".files.", suffix=f".{_writer()}.tmp", dir=folder))
    try:
        write(temporary)
        for file in sorted(path for path in temporary.rglob("*") if path.is_file()):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            place = folder / file.relative_to(temporary)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Was this left by a writer that was killed (or is it one at work)? The next write of its file takes it away."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _writer() -> str:
    """This process, among those that may share a disk."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', platform.node())}.{os.getpid()}"


def _clear(path: Path) -> None:
    """Take away what earlier writers of this file, on this machine, have left when they were killed."""
    host, _ = _writer().rsplit(".", 1)
    known = re.compile(rf"\.{re.escape(path.name)}\.[^.]+\.{re.escape(host)}\.(\d+)\.tmp")
    for name in os.listdir(path.parent):
        found = known.fullmatch(name)
        if found and not _alive(int(found[1])):
            left = path.parent / name
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    with suppress(PermissionError):  # somebody else's
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
