import pytest


@pytest.fixture(autouse=True)
def processes_as_users_start_them(fresh_python):
    """Who is killed is found by what the system knows of a process: its command, its variables."""
