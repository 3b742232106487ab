"""The built-in trainer: one worker process of one rank. Importing this package imports nothing heavy.

worker.py       what a process does from its environment to its exit status
session.py      everything that depends on the membership, built by one function and torn down again
loop.py         the training loop, on one page
data.py         RunSpec -> loader -> one StepBatch per optimizer step
model.py        the decoder; attention.py its document mask
reduction.py    gradients of one global batch: default or canonical
optim.py schedule.py checkpoint.py metrics.py distributed.py
"""
