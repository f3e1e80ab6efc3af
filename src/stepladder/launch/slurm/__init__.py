"""A run as a Slurm job: the script, the submission and following it."""
