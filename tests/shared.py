"""Where the reference figures lie in development and CI; users do not have them."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(),
    reason="the reference figures (../shared/data) are not part of the package",
)
