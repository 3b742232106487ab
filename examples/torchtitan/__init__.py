"""TorchTitan with this loader: ``--module examples.torchtitan`` reads config_registry.py; the data are in experiment.yaml."""
