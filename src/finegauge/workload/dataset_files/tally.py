"""What is found while the records of a data set are read: formats, empty and unreadable ones, unused keys."""

from collections import Counter
from typing import TypeVar

from finegauge.workload.dataset_files.formats import USED_KEYS, Unreadable, read_record
from finegauge.workload.dataset_files.lengths import MOST_SHOWN, Findings
from finegauge.workload.dataset_files.records import Bad, Chunk, row_name
from finegauge.workload.dataset_files.rendering import Rendered, Rendering, in_words
from finegauge.workload.dataset_files.source import Source

MOST_SHAPES = 1000  # sets of keys that are told apart
NO_TEXT = "it holds characters that are no Unicode (a lone surrogate)"
T = TypeVar("T")


class Tally:
    """The findings about one data set, so far."""

    def __init__(self, source: Source) -> None:
        """Begin with nothing found."""
        self.source = source
        self.num_rows = 0
        self.formats: Counter[str] = Counter()
        self.shapes: Counter[tuple[object, ...]] = Counter()  # the keys of records, as they stand in order
        self.empty: list[int] = []
        self.unreadable: list[tuple[int, str]] = []
        self.num_empty = self.num_unreadable = 0
        self.made: Rendering | None = None

    def rendered(self, chunk: Chunk, made: Rendering, wanted: str | None) -> tuple[list[int], list[Rendered]]:
        """Return the texts of a chunk and where they stand; empty and unreadable records are noted."""
        self.made = made
        self.num_rows += len(chunk.rows)
        rows, texts = [], []
        for row, record in zip(chunk.rows, chunk.records, strict=True):
            if isinstance(record, Bad):
                self._refuse(row, record.why)
                continue
            if isinstance(record, dict) and (len(self.shapes) < MOST_SHAPES or tuple(record) in self.shapes):
                self.shapes[tuple(record)] += 1
            try:
                name, said = read_record(record, wanted)
                text = made.render(said)
            except Unreadable as error:
                self._refuse(row, str(error))
                continue
            if text.is_empty:
                self._leave_out(row)
            else:
                self.formats[name] += 1
                rows.append(row)
                texts.append(text)
        return rows, texts

    def kept(self, rows: list[int], samples: list[T | None]) -> tuple[list[int], list[T]]:
        """Return the samples that are some, and where they stand; None is one that could not be encoded."""
        kept_rows, kept = [], []
        for row, sample in zip(rows, samples, strict=True):
            if sample is None:
                self._refuse(row, NO_TEXT)
            elif sample:
                kept_rows.append(row)
                kept.append(sample)
            else:
                self._leave_out(row)
        return kept_rows, kept

    def _refuse(self, row: int, why: str) -> None:
        self.num_unreadable += 1
        if len(self.unreadable) < MOST_SHOWN:
            self.unreadable.append((row, why))

    def _leave_out(self, row: int) -> None:
        self.num_empty += 1
        if len(self.empty) < MOST_SHOWN:
            self.empty.append(row)

    def nothing_found(self) -> str:
        """Return why there is no sample at all, for an error."""
        path = self.source.path
        if self.unreadable:
            row, why = self.unreadable[0]
            more = f" (and {self.num_unreadable - 1:,} more)" if self.num_unreadable > 1 else ""
            return f"{path}, {row_name(self.source)} {row}{more}: {why}."
        return f"{path} holds no text; each record needs a 'text' or a question and its answer."

    def findings(self, num_without_answer: int) -> Findings:
        """Return what was found."""
        unused: Counter[str] = Counter()
        for keys, count in self.shapes.items():
            unused.update({str(key)[:80]: count for key in keys if key not in USED_KEYS})
        formats = tuple(self.formats.most_common())
        chosen = in_words(self.made, tuple(name for name, _ in formats)) if self.made is not None else ""
        return Findings(
            formats=formats,
            row_name=row_name(self.source),
            num_rows=self.num_rows,
            num_bytes=self.source.num_bytes,
            num_empty=self.num_empty,
            empty_rows=tuple(sorted(self.empty)),
            num_unreadable=self.num_unreadable,
            unreadable=tuple(sorted(self.unreadable)),
            num_without_answer=num_without_answer,
            unused_keys=tuple(unused.most_common(MOST_SHOWN)),
            notes=tuple(note for note in (*self.source.notes, chosen) if note),
        )
