"""Run folders made visible. Standard library only; the web server stands in `dashboard.web`."""

from .facts import facts, headline
from .gallery import Gallery, check_run
from .index import JournalIndex

__all__ = ["Gallery", "JournalIndex", "check_run", "facts", "headline"]
