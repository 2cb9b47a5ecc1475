"""The names that `import finegauge` promises, whatever was imported before."""

import subprocess
import sys

import pytest

import finegauge


@pytest.mark.parametrize("name", finegauge.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(finegauge, name)
    assert name in dir(finegauge)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = finegauge.nonsense


def test_predict_is_the_function_even_where_its_package_came_first() -> None:
    code = (
        "import finegauge.prediction, finegauge;"
        "run = finegauge.Run(model='llama-3-8b', method='qlora', gpu='A40');"
        "assert finegauge.predict(run).fits;"
        "from finegauge import predict;"
        "assert predict(run).fits;"
        "assert finegauge.max_micro_batch_size(run).value > 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert finegauge.__version__ == version("finegauge")
