"""The only package that touches private names of torch: what each is for, and how we do without."""

from .lookup import find, has
from .names import NAMES
from .private_name import PrivateName

__all__ = ["NAMES", "PrivateName", "find", "has"]
