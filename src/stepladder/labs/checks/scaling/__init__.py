"""Checks of the labs on scaling."""
