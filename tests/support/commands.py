"""Commands of `stepscope` in the process of the test: importing their libraries takes most of a second."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from stepscope.commands.cli import main


def stepscope(*words: object) -> subprocess.CompletedProcess[str]:
    """Returns the exit status of a command that ends by itself, and what it prints."""
    typed = [*map(str, words)]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        status = main(typed)
    return subprocess.CompletedProcess(typed, status, out.getvalue(), errors.getvalue())


def refusal(*words: object) -> str:
    """Returns the one line with which a command refuses its words. Fails if it does anything else."""
    answer = stepscope(*words)
    assert (answer.returncode, answer.stdout) == (2, ""), answer
    assert answer.stderr.startswith("stepscope: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr
