"""How commands show results: tables, plots and pages."""
