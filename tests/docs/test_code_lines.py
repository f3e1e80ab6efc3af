"""Lines of code are counted alike for everybody."""

from tests.docs.test_site import load


def test_only_lines_that_hold_code_count():
    code = '''"""What it does.

In two lines.
"""

import torch
from os import (
    path,
)

# a comment
x = torch.tensor(  # two lines
    path)


def f():
    """Its docstring."""

    return """a text
    that is a value"""
'''
    assert load("code_lines").count(code) == 5
