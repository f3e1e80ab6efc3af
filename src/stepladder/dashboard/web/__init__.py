"""The dashboard's web server: starlette and uvicorn, installed with the `watch` extra."""

from .application import build_application
from .serve import Address, serve

__all__ = ["Address", "build_application", "serve"]
