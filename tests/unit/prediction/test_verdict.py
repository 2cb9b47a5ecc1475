"""Where fitting becomes risky, and risky hopeless."""

import pytest

from finegauge.prediction.uncertainty import EXIT_CODES, verdict


@pytest.mark.parametrize(
    ("fraction", "said", "code"),
    [
        (0.0, "fits", 0),
        (0.049, "fits", 0),
        (0.05, "risky", 10),
        (0.499, "risky", 10),
        (0.5, "will_not_fit", 20),
        (1.0, "will_not_fit", 20),
    ],
)
def test_verdict(fraction: float, said: str, code: int) -> None:
    assert verdict(fraction) == said
    assert EXIT_CODES[said] == code
