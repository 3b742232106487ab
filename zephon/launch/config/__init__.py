"""Config groups and arguments become a RunSpec, through Hydra."""
