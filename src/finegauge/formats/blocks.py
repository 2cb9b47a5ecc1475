"""Conditions and loops of a shell script: which branch is read, by what the text tells of the tests."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase


class Block:
    """A condition, a loop or a group, and whether the branch that is read is taken (None: it may be)."""

    def __init__(
        self,
        closes: str,
        *,
        live: bool,
        word: str = "",
        begin: int = 0,
        again: "Callable[[Block], bool] | None" = None,
    ) -> None:
        """Begin before the first branch; `word`: what a case compares; a loop goes to `begin` if `again`."""
        self.closes, self.word, self.begin, self.again = closes, word, begin, again
        self.sure = self.resumes = False  # whether a loop's test is decided, and its turn left for the next
        self.live: bool | None = live
        self.patterns: list[str] | None = [] if closes == "esac" else None  # while they are read
        self.tests: list[bool | None] = []
        self.joined: list[str] = []  # by which operators
        self.left: bool | None = live  # whether no branch before was taken

    def ask(self) -> None:
        """Come to the test of the next branch."""
        self.live, self.tests, self.joined = self.left, [], []

    def enter(self, decided: bool | None) -> None:
        """Enter a branch whose own test is `decided`."""
        self.live = all_of((self.left, decided))
        self.left = all_of((self.left, not_of(decided)))

    def answer(self) -> bool | None:
        """Return what the tests since `ask` come to."""
        found = self.tests[0] if self.tests else None
        for between, one in zip(self.joined, self.tests[1:], strict=False):
            either = not_of(all_of((not_of(found), not_of(one))))
            found = either if between == "||" else all_of((found, one)) if between == "&&" else None
        return found


def all_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all are true."""
    return False if False in answers else None if None in answers else True


def not_of(answer: bool | None) -> bool | None:
    """Return the other answer."""
    return None if answer is None else not answer


def fits(word: str, pattern: str) -> bool | None:
    """Return whether a word is one of a pattern's."""
    return True if pattern == "*" else None if "$" in word + pattern else fnmatchcase(word, pattern)
