"""Run folders made visible. Standard library only; the web server stands in `dashboard.web`."""

from .facts import facts, headline
from .gallery import Gallery
from .index import JournalIndex

__all__ = ["Gallery", "JournalIndex", "facts", "headline"]
