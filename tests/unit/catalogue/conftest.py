"""A home and a cache of their own for every test: no file of this machine's user is read."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty $FINEGAUGE_HOME, its cache beside it."""
    monkeypatch.setenv("FINEGAUGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FINEGAUGE_OFFERS_URL", raising=False)
    return tmp_path / "home"
