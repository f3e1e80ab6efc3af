import pytest

from stepladder.data.formats.optional_packages import import_optional
from stepladder.errors import DataError


def test_a_missing_package_names_the_command_that_brings_it():
    with pytest.raises(DataError) as refused:
        import_optional("no_such_decoder.deep", field="images", install="no-such-decoder")
    assert str(refused.value) == (
        "images: needs the package 'no_such_decoder', which is not installed. "
        "Install it: pip install no-such-decoder"
    )


def test_a_present_package_is_the_package():
    assert import_optional("json", field="x", install="x").loads("1") == 1
