"""Our loader in other people's training loops. Each file is one recipe: run it, or copy what you need.

    plain.py        PyTorch and nothing else          trainer.py      Hugging Face Trainer
    saving.py       the same, saving on the way       accelerate.py   Hugging Face Accelerate
    ddp.py          torchrun, DDP, an own loop        lightning.py    PyTorch Lightning's Trainer
    fsdp.py         torchrun, FSDP2, an own loop      fabric.py       Lightning Fabric
    stateful.py     torchdata's StatefulDataLoader

    python -m examples.recipes.plain
    torchrun --nproc-per-node 2 -m examples.recipes.ddp

All train the same tiny model on the same steps, stop half way and go on from the saved state. Run as a program, each prints
that the losses are those of a training that was not stopped.
"""
