"""Makes src/adjourn/_sync from src/adjourn/_async.

The two halves of the client differ only in `async` and `await`, so the
blocking one is not written but derived, word by word, and cannot drift. What
each does in its own way is in `_io_async.py` and `_io_sync.py`, under the same
names.
"""

from __future__ import annotations

import pathlib
import re

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "src" / "adjourn"

WORDS = [
    (r"async def ", "def "),
    (r"async with ", "with "),
    (r"async for ", "for "),
    (r"await ", ""),
    (r"import grpc\.aio\n", ""),
    (r"AsyncIterator\b", "Iterator"),
    (r"AsyncClient\b", "Client"),
    (r"AsyncStub\b", "Stub"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"StopAsyncIteration", "StopIteration"),
    (r"_io_async\b", "_io_sync"),
    (r"adjourn\._async\b", "adjourn._sync"),
    (r"adjourn\.aio\b", "adjourn"),
]


def blocking(text: str) -> str:
    """The blocking form of a module's text."""
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def main() -> None:
    """Writes every module of the blocking half."""
    target = PACKAGE / "_sync"
    target.mkdir(exist_ok=True)
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        note = f"# Made from _async/{source.name} by scripts/gen. Do not edit.\n"
        (target / source.name).write_text(note + blocking(source.read_text()))


if __name__ == "__main__":
    main()
