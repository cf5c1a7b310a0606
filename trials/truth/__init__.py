"""Is the slow rank named, with its cause, in scripts that know nothing of Stepscope, and nobody else?

`python -m trials.truth` trains with PyTorch's DistributedDataParallel and FSDP2 on the CPU, under
`stepscope run -- torchrun train.py`. The script delays one of its ranks at one place, and the report must
name both. trials/README.md describes it and has its table.
"""
