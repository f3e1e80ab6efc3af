"""The planner as a page: a form, its forecast, and the server that joins them."""
