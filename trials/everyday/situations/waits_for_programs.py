"""No steps: converts files with one program after another, and waits for each."""

import subprocess

from trials.everyday.clock import GOOD, cost, lasts

at_once = 10 if GOOD else 1
converted = 0
while lasts() and converted < 200:
    with cost:
        running = [subprocess.Popen(["sleep", "0.1"]) for _ in range(at_once)]
        for program in running:
            program.wait()  # the cause
    converted += at_once
