"""The built-in trainer: one worker process of one rank. Importing this package imports nothing heavy.

worker.py       what a process does from its environment to its exit status
session.py      everything that depends on the membership, built by one function and ended by close()
loop.py         the training loop
feed.py         RunSpec -> loader -> one StepBatch per optimizer step and rank; step.py what all ranks agree on
model.py        the decoder; attention.py its document mask
reduction.py    gradients of one global batch: default or canonical; ddp.py the hook that sums over ranks
evaluation.py   loss on held-out text; tasks.py multiple choice, task_files.py its formats
records.py      what rank 0 writes of each step; metrics.py the sinks
checkpoint.py   PyTorch's distributed checkpoint, complete or absent; hf.py weights to and from Hugging Face
stages.py       calibration and evaluation as stages of a run
distributed.py attention.py optim.py schedule.py loss.py tensor.py trackers.py usage.py
"""
