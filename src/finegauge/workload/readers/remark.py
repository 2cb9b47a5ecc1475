"""What a training file says of itself in a comment: `# finegauge: {gpu: A40, num_gpus: 8}`.

Most frameworks refuse keys that they do not know, so the block `finegauge:` cannot stand in their
files. A comment can: the first lines of the file, up to the first that is none.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FileFormatError
from finegauge.workload.readers import yaml_safe

MAX_LINES = 100
_REMARK = re.compile(r"#\s*finegauge:\s*(\{.*\})\s*$")


def fields_of(text: str, name: str) -> Mapping[str, Any]:
    """Return the fields that the comment at the head of a file states; {} where there is none.

    Raises: FileFormatError where it holds no fields with values.
    """
    for line in text.splitlines()[:MAX_LINES]:
        if not line.startswith("#"):
            break
        found = _REMARK.match(line[:10_000])
        if found:
            fields = yaml_safe.load(found.group(1), f"{name} (its comment)")
            if not isinstance(fields, dict):
                raise FileFormatError(
                    f"{name}: the comment finegauge: must hold fields, such as {{gpu: A40}}."
                )
            return fields
    return {}
