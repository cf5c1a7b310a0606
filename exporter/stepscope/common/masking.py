"""Masks what looks like a secret in a command line, before it is stored or printed.

Masked are: values of arguments with a telling name, users and passwords in addresses, and long random words.
A word counts as random if letters and digits, or capitals and small letters, alternate as in no name or path.
That includes hashes of 32 or more digits, which look like keys. docs/run.md has examples.
"""

import re
from collections.abc import Sequence

MASK = "***"

_TELLING = re.compile(
    r"password|passwd|passphrase|passwort|secret(?!ar)|credential|api_?key|bearer"
    r"|(?:access|account|auth|encryption|license|master|private|signing|ssh|storage)_key"
    r"|(?:^|_)(?:auth|authorization|cookie|creds?|jwt|otp|pwd|sas|sig|signature|userpass)(?:_|$)"
    r"|(?:^|(?:db|sql|user|admin|root|smtp|mail|ssh|http|proxy|redis|mongo|ftp)_)pass$"
)
# `--max-token`, `eos_token`: tokens of a text.
_TOKEN = re.compile(
    r"(?<!add)(?<!bos)(?<!cls)(?<!end)(?<!eos)(?<!max)(?<!min)(?<!new)(?<!num)(?<!pad)(?<!per)(?<!sep)(?<!unk)"
    r"(?<!mask)(?<!stop)(?<!image)(?<!start)(?<!special)_[a-z]*token_?\d*$"
)
_ABOUT = re.compile(r"_(?:dir|env|file|len|length|name|path|provider|store|ttl|type|ur[il])$")
_NO_SECRET = re.compile(r"(?i)true|false|none|null|yes|no|0|1|")

_ASSIGNMENT = re.compile(r"[-+~]*([\w.-]+)=")
# Names in a word with several: a shell command, JSON, YAML, the query of an address.
_NAME = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]+)(?:\\*["'])?\s*[=:]\s*(?:\\*["'])?"""
    r"""|(?<![\w.-])(?P<flag>--?[A-Za-z][\w.-]*)\s+["']?"""
)
_VALUE = re.compile(r"""(?<=")[^"]+|(?<=')[^']+|[^\s"'&,;}\])]+""")
_HEADER = re.compile(
    r"""(?i)(?<![\w-])((?:proxy-)?authorization|cookie|x-[\w-]*(?:key|token))(\s*[:=]\s*)[^"']+"""
)
_USER = re.compile(r"://(?=[^/@]*:)")
_UNQUOTED = re.compile(r"""[^\s'"]+""")
_LOGIN = re.compile(r"(?!\d+:\d+$)[^\s:/]+:[^\s/].*")

# Prefixes of tokens: OpenAI, Stripe, GitHub, GitLab, Hugging Face, NVIDIA, Slack, PyPI, npm, Google, AWS.
_PREFIXED = re.compile(
    r"(?<![\w-])(?:(?:sk|pk|rk|pypi|xox[a-z]|glpat)-|(?:gh[a-z]|github_pat|npm|hf|api_org)_|nvapi-|AIza|A[KS]IA)"
    r"(?=[\w-]*[A-Z])[\w-]{16,}"
)
_HEXADECIMAL = re.compile(
    r"(?i)(?<![\w-])(?<!sha256:)(?=[\d-]*[a-f])(?:[0-9a-f]{32,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![\w-])"
)
_RUN = re.compile(r"(?<![\w+/=-])(?!(?:GPU|MIG)-)(?<!sha256:)[\w+/=-]{20,}")
_PIECE = re.compile(r"[A-Za-z0-9]+")
_SYLLABLE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def masked(words: Sequence[str]) -> list[str]:
    """Returns the words of a command with every secret replaced by `***`."""
    return [_masked_word(word, before) for before, word in zip(("", *words), words, strict=False)]


def _masked_word(word: str, before: str) -> str:
    if re.fullmatch(r"-[^=]+", before) and not word.startswith("-") and _is_telling(before):
        return _mask(word)
    if before in ("-u", "--user") and _LOGIN.fullmatch(word):
        return MASK
    at = 0
    while assigned := _ASSIGNMENT.match(word, at):  # --env=PASSWORD=a b
        at = assigned.end()
        if _is_telling(assigned[1]):
            return word[:at] + _mask(word[at:])
    word = _UNQUOTED.sub(_mask_user, word)
    word = _HEADER.sub(rf"\1\2{MASK}", word)
    word = _PREFIXED.sub(MASK, _mask_values(word))
    return _RUN.sub(_mask_random, _HEXADECIMAL.sub(MASK, word))


def _mask(value: str) -> str:
    return value if _NO_SECRET.fullmatch(value) else MASK


def _mask_user(found: re.Match[str]) -> str:
    before, at, host = found[0].rpartition("@")
    scheme = _USER.search(before) if at else None
    return f"{before[: scheme.end()]}{MASK}@{host}" if scheme else found[0]


def _mask_values(text: str) -> str:
    parts, at = [], 0
    while name := _NAME.search(text, at):
        parts.append(text[at : name.end()])
        at = name.end()
        if _is_telling(name["name"] or name["flag"]) and (value := _VALUE.match(text, at)):
            parts.append(_mask(value[0]))
            at = value.end()
    return "".join([*parts, text[at:]])


def _is_telling(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", f"_{name.lstrip('-+~')}").lower()
    return not _ABOUT.search(words) and bool(_TELLING.search(words[1:]) or _TOKEN.search(words))


def _mask_random(found: re.Match[str]) -> str:
    run = found[0]
    pieces = [piece for piece in _PIECE.findall(run) if not piece.isdigit()]
    if any(map(_is_random, pieces)):
        return _PIECE.sub(lambda piece: MASK if _is_random(piece[0]) else piece[0], run)
    together = "".join(pieces)  # base64 has separators, and so have names like Qwen2-VL-7B-Instruct-AWQ-Int4
    longest = 3.0 if re.search("[+=]", run) else 2.3
    return MASK if _has(together, "[a-z]", "[A-Z]", "[0-9]") and _alternates(together, longest) else run


def _is_random(piece: str) -> bool:
    """Returns whether a word without separators is unlike all that a person would write."""
    return (_has(piece, "[A-Za-z]", "[0-9]") and _alternates(piece, 4.8)) or _alternates(piece, 3.2)


def _has(text: str, *kinds: str) -> bool:
    return all(re.search(kind, text) for kind in kinds)


def _alternates(text: str, longest: float) -> bool:
    """Returns whether the parts of a long text of one kind have at most `longest` characters on average."""
    return len(text) >= 20 and len(text) <= longest * len(_SYLLABLE.findall(text))
