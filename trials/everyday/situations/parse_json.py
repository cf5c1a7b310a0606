"""Plain Python: parses the same configuration again for each record."""

import json

from trials.everyday.clock import GOOD, cost, lasts

text = json.dumps({f"key {number}": [number] * 20 for number in range(2000)})
settings = json.loads(text)
total = 0

while lasts():
    with cost:
        if not GOOD:
            settings = json.loads(text)  # the cause
    total += sum(settings["key 7"])
