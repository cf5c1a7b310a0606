"""Is what slows everyday training named first, with its line, and are healthy scripts left alone?

`python -m trials.everyday` runs short scripts under `stepscope run -- python SCRIPT`: each with its cause,
and as its healthy twin (`--good`). `truths.py` says what must be found, and was written before they ran.
trials/README.md describes it and has its table.
"""
