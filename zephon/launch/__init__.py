"""``python -m zephon.launch``: config -> RunSpec -> contract -> AppDef -> scheduler.

cli.py          argv -> verb; compose.py the Hydra composition; schema.py its types; overrides.py what is typed
contract.py     which differences a resume accepts
session.py      start, resume, stop, rescale: the verbs as functions
appdef.py       RunSpec -> TorchX AppDef, pure; plan.py what would be submitted
status.py display.py logs.py   what is seen
backends/ where jobs run
"""
