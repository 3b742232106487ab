"""The built-in trainer: one worker process of one rank. Importing this package imports nothing heavy.

worker.py       what a process does from its environment to its exit status
session.py      everything that depends on the membership, built by one function and torn down again
loop.py         the training loop, on one page
data.py         RunSpec -> loader -> one StepBatch per optimizer step
model.py        the decoder; attention.py its document mask
reduction.py    gradients of one global batch: default or canonical
evaluation.py   loss on held-out text
records.py      what rank 0 writes of each step; metrics.py the sinks
checkpoint.py   PyTorch distributed checkpoint, complete or not there; hf.py to and from Hugging Face
distributed.py optim.py schedule.py loss.py tensor.py usage.py check_gpu.py
"""
