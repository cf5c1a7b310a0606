"""run.json: what is known of a recorded run as a whole. Written at its start, completed at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.runs.recording.schema import FORMAT, check_format
from trainwatch.whole_file import write_whole

NAME = "run.json"


@dataclass(frozen=True)
class RunFile:
    """The content of run.json. Times are seconds since the epoch, None where not known (yet)."""

    name: str
    start: float | None = None
    end: float | None = None
    command: str = ""
    exit_status: int | None = None
    interval: float = 0.5
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes run.json whole: a reader sees the old one or the new one. Raises OSError."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        write_whole(directory / NAME, text + "\n")

    @classmethod
    def read(cls, directory: Path) -> RunFile | None:
        """The directory's run.json, None where there is none. Raises UserError where it cannot be used."""
        path = directory / NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); move it away to read the rest") from error
        try:
            check_format(values.pop("format", None), str(path))
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise UserError(f"{path} is not Trainwatch's ({error}); move it away to read the rest") from error
