"""Lines of code are counted alike for everybody."""

from tests.docs.site_scripts import load


def test_statements_count_once_and_imports_and_docstrings_do_not():
    code = '''"""What it does.

In two lines.
"""

import torch
from os import (
    path,
)

# a comment
x = torch.tensor(  # wrapped
    path)


def f():
    """Its docstring."""

    return """a text
    that is a value"""
'''
    assert load("code_lines").count(code) == 3
