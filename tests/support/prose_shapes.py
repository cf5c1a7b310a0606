"""The project's vocabulary: words and shapes of sentences to avoid, with the better ones."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A pattern to avoid, the advice, and two examples."""

    pattern: str
    advice: str
    wrong: str
    right: str

    def found_in(self, sentence: str) -> str | None:
        """Returns the words that match, or None."""
        match = re.search(self.pattern, sentence, re.IGNORECASE)
        return match.group() if match else None


_UNIT = (
    r"(?:second|minute|hour|day|file|rule|node|rank|GPU|core|step|scrape|sample|worker|process|scenario"
    r"|tick)"
)
_COUNTED = (
    r"(?:rows?|lines?|files?|folders?|columns?|charts?|readings?|scrapes?|calls?|steps|bytes|joules|values|views?"
    r"|million|messages?|workers?|series|times|operations|outlines?|keys?|functions?|purpose)"
)
SHAPES = (
    Shape(r"\b(anew|afresh)\b", "again", "Writes it anew.", "Writes it again."),
    Shape(r"\bmend(s|ed|ing)?\b", "fix", "Mend the transform.", "Fix the transform."),
    Shape(
        r"\b(for|to|by|from|only|than) who\b|^(?-i:Who)\b[^?]*\.$|\bwhoever\b",
        'name the person: "clients that ...", "users who ..."',
        "Gzip for who accepts it.",
        "Gzip for clients that accept it.",
    ),
    Shape(
        r"\bso (many|much|long) (times|points|of|minutes|after)\b",
        "give the number or the unit",
        "It is so many times as fast.",
        "The speed-up is 16.",
    ),
    Shape(
        r"\b(tell|tells|told|telling|take|takes|taken)\b[^.;]{0,60}\bapart\b",
        "distinguish",
        "The rule tells slow storage and slow transforms apart.",
        "The rule distinguishes slow storage from slow transforms.",
    ),
    Shape(
        r"\bin the place of\b", "instead of", "Pass a URL in the place of DIR.", "Pass a URL instead of DIR."
    ),
    Shape(r"\btakes? the place of\b", "replaces", "It takes the place of DIR.", "It replaces DIR."),
    Shape(r"\bfor want of\b", "because of", "It failed for want of room.", "It failed: the disk is full."),
    Shape(r"\beach \d", "every", "It samples each 500 ms.", "It samples every 500 ms."),
    Shape(
        rf"\b{_COUNTED} an? {_UNIT}\b",
        "per, or one ... per ...",
        "There is one file a rule.",
        "There is one file per rule.",
    ),
    Shape(
        r"[,;] else\b|\band else\b",
        "otherwise, or if ... otherwise",
        "It is the script's name, else the run's.",
        "It is the script's name, otherwise the run's.",
    ),
    Shape(
        r"^(?-i:Of|Where)\b[^?]*$",
        "put the subject first",
        "Where no GPU is read, nothing is judged.",
        "Nothing is judged if no GPU is read.",
    ),
    Shape(
        r"^(?-i:Kept|Checked|Simulated|Counted|Supported|Measured|Compared|Printed) (are|is)\b",
        "put the subject first",
        "Kept are the last ten.",
        "The last ten are kept.",
    ),
    Shape(
        r"\b(is|are|was|were) to be\b|\bneeds? not\b|\bshall\b",
        "must, will, does not have to",
        "The file is to be read once.",
        "The file must be read once.",
    ),
    Shape(r"\bsnapshots?\b", "sample", "A snapshot every 500 ms.", "A sample every 500 ms."),
    Shape(r"\bheuristics?\b", "rule", "Adding a heuristic.", "Adding a rule."),
    Shape(r"\bbesides?\b", "next to, with, also", "The JSON is beside it.", "The JSON is next to it."),
    Shape(
        r"\b(stands?|stood)\b(?! (for|out)\b)",
        "is, stalls, is written",
        "The reason stands in the log.",
        "The reason is in the log.",
    ),
    Shape(r"\b(lie|lies|lying)\b", "is", "The files lie in DIR.", "The files are in DIR."),
    Shape(
        r"(?<!lag )(?<!lags )(?<!falls )(?<!fall )\bbehind\b(?! a proxy)",
        "after, following, causing",
        "Give a start behind it.",
        "Give a start after it.",
    ),
    Shape(
        r"\b(tells|told)\b",
        "says, reports, notifies, sets",
        "The trace tells the time.",
        "The trace has the time.",
    ),
    Shape(
        r"\bsays? findings\b",
        "prints findings",
        "It says findings as they appear.",
        "It prints findings as they appear.",
    ),
    Shape(r"\bdear(er|est)?\b", "expensive", "The dearer rules.", "The more expensive rules."),
    Shape(r"\bmistakes?\b", "error", "A wrong flag is a mistake.", "A wrong flag is an error."),
    Shape(
        r"\b(hold|holds|held|holding) (\w+ ){0,2}up\b",
        "delays, blocks, slows down",
        "Storage holds the loader up.",
        "Storage delays the loader.",
    ),
    Shape(r"\bfits and starts\b", "fluctuates", "It is used in fits and starts.", "Its use fluctuates."),
    Shape(
        r"\b(works?|are|is|were|slow) alike\b",
        "balanced, the same, similar",
        "The GPUs do not work alike.",
        "The load is unbalanced.",
    ),
    Shape(r"\b(samples?|is|are) concerned\b", "counts", "A sample is concerned.", "A sample counts."),
    Shape(
        r"\b(hence|thereof|therein|whereof|whereupon|upon)\b",
        "so, therefore, on",
        "Hence the absolute paths.",
        "This is why paths are absolute.",
    ),
    Shape(r"\bbears?\b", "has", "The alert bears the label.", "The alert has the label."),
    Shape(r"\bat the (most|least)\b", "at most, at least", "Ten at the most.", "Ten at most."),
    Shape(r"\bin good order\b", "cleanly, normally", "It ends in good order.", "It ends cleanly."),
    Shape(
        r"\b(as|when|before|what|if|that) one (looks|sees|reads|has|can|would|must)\b",
        "you",
        "Such as one sees on a node.",
        "Such as you see on a node.",
    ),
    Shape(
        r"(?<!there )\b(is|are) none\b", "say what it is", "Such a scan is none.", "Such a scan is skipped."
    ),
    Shape(r"\btaken for\b", "treated as", "It is taken for an error.", "It is treated as an error."),
    Shape(r"\btime-outs?\b|\bre-(use|try)\b", "timeout, reuse, retry", "A time-out.", "A timeout."),
    Shape(r"\b(goes|go|going|went) on\b(?! to)", "continue", "The run goes on.", "The run continues."),
    Shape(
        r"\ba \w+ of (its|their) own\b",
        'write "its own ..."',
        "Each secret is a file of its own.",
        "Each secret has its own file.",
    ),
    Shape(r"\basked for\b", "requested", "Once it is asked for.", "Once it is requested."),
    Shape(r"\b(do|does) without\b", "does not need", "It does without root.", "It does not need root."),
    Shape(r"\ball the same\b", "still, anyway", "It runs all the same.", "It still runs."),
    Shape(r"\bbe had\b", "is available", "The nearest that can be had.", "The nearest available one."),
    Shape(
        r"\b(is|are) (not )?there\b(?=[.,;:)]|$)",
        "exists, is available",
        "The label is there.",
        "The label exists.",
    ),
    Shape(r"\bhears? of\b", "is notified", "Who hears of it?", "Who is notified?"),
    Shape(r"\bspeaks? (of|to)\b", "refer to, describe", "Rules speak of samples.", "Rules count samples."),
    Shape(
        r"\bcomes? and goes?\b",
        "is intermittent",
        "The signal comes and goes.",
        "The signal is intermittent.",
    ),
    Shape(
        r"\b(for|after|of) so (long|many)\b",
        "give the number or the unit",
        "It lasts for so long.",
        "It lasts for ten minutes.",
    ),
    Shape(
        r"\bby the clock\b",
        "wall time",
        "It took 3 s by the clock.",
        "It took 3 s of wall time.",
    ),
)
