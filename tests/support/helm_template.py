"""Renders a chart with Helm's own library, as a program: the library brings Go's runtime and its threads.

Reads JSON (`chart`, `namespace`, `values`, and `set`: texts for --set), and writes manifests or Helm's error.
"""

import json
import sys

import helm_python


def main() -> int:
    asked = json.load(sys.stdin)
    with helm_python.Chart.load(asked["chart"]) as chart:
        values = helm_python.parse_set_string(",".join(asked["set"])) if asked["set"] else asked["values"]
        try:
            chart.validate_schema(values)
            manifests = chart.render(values, name="stepscope", namespace=asked["namespace"])
        except helm_python.HelmError as error:
            print(error, file=sys.stderr)
            return 1
        packed = [*chart.files, *chart.templates]
    json.dump({"manifests": manifests, "packed": packed}, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
