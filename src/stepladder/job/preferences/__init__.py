"""Preference tuning (DPO): answers that are to become likelier than others."""
