"""Our loader in other people's training loops. Each file is one recipe: run it, or copy what you need.

    plain.py        PyTorch and nothing else          trainer.py    Hugging Face Trainer
    accelerate.py   Hugging Face Accelerate           fabric.py     Lightning Fabric
    stateful.py     torchdata's StatefulDataLoader

All train the same tiny model on the same steps, stop half way, and go on from the saved state.
"""
