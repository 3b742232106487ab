"""``python -m zephon.launch``: config -> RunSpec -> contract -> Job -> backend.

cli/            argv -> verb, and what is seen: plan, status, logs
config/         overrides and config groups, composed by Hydra into a RunSpec
contract.py     which differences a resume accepts; fork.py a new run from a checkpoint; stored.py a stored experiment
start.py        start and resume; control.py stop and rescale; status.py the state of a run
job.py          one attempt as a value; appdef.py the same for TorchX
backends/       who carries a job out: base.py says what each can do, registry.py finds it by its name
"""
