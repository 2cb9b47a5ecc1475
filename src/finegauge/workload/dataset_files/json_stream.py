"""JSON values one after the other out of a stream: a long list is never held whole.

A value is parsed as soon as enough text is there; where it is not, twice as much is read before the next
try, so that a record of any size costs a constant number of passes over its text.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import IO, Any

from finegauge.errors import FileFormatError

PIECE_BYTES = 1 << 18
_SPACE = " \t\r\n"


def values(stream: IO[bytes], path: str, most: int) -> Iterator[tuple[Any, int]]:
    """Yield (value, its characters) of a list's items, or of values that follow each other.

    Args:
        stream: UTF-8.
        path: For messages.
        most: Characters of one value.
    Raises: FileFormatError with the number of the record that is no JSON.
    """
    reader = _Reader(stream, path, most)
    first = reader.peek()
    if first == "":
        return
    is_list = first == "["
    if is_list:
        reader.at += 1
    while True:
        following = reader.peek()
        if following == "" or (is_list and following == "]"):
            if is_list and following == "":
                raise reader.refused("the list does not end")
            return
        yield reader.value()
        if is_list and reader.peek() == ",":
            reader.at += 1
            if reader.peek() == "]":
                raise reader.refused("a comma stands before the end of the list")
        elif is_list and reader.peek() not in ("]", ""):
            raise reader.refused("a comma is missing behind it")


class _Reader:
    """Text of which the front is already parsed."""

    def __init__(self, stream: IO[bytes], path: str, most: int) -> None:
        self.stream, self.path, self.most = stream, path, most
        self.text, self.at, self.number = "", 0, 0
        self.parse = JSONDecoder().raw_decode
        self.decode = getincrementaldecoder("utf-8-sig")().decode

    def refused(self, why: str) -> FileFormatError:
        """Return the error that names the record at hand."""
        return FileFormatError(f"{self.path}, record {max(1, self.number)} cannot be read as JSON: {why}.")

    def more(self, num_bytes: int) -> bool:
        """Read on; return whether there was more."""
        packed = self.stream.read(num_bytes)
        try:
            piece = self.decode(packed, not packed)
        except UnicodeDecodeError:
            raise self.refused("it is not UTF-8") from None
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(packed)

    def peek(self) -> str:
        """Return the next character that is not space, "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more(PIECE_BYTES):
                return ""

    def value(self) -> tuple[Any, int]:
        """Return the value at hand and its characters."""
        self.number += 1
        while True:
            try:
                found, end = self.parse(self.text, self.at)
            except JSONDecodeError as error:
                held = len(self.text) - self.at
                if held > self.most or not self.more(max(PIECE_BYTES, held)):
                    raise self.refused(error.msg) from None
            except (ValueError, RecursionError) as error:
                raise self.refused(str(error).splitlines()[0]) from None
            else:
                size, self.at = end - self.at, end
                return found, size
