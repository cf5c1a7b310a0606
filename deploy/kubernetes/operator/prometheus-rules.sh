#!/bin/sh
# Writes rule files as PrometheusRule resources of the Prometheus operator:
#   deploy/kubernetes/operator/prometheus-rules.sh rules/*.yml | kubectl apply --server-side --namespace trainwatch -f -
# To add the labels by which your Prometheus selects rules, set LABELS="release=prometheus team=ml".
set -eu
for file in "$@"; do
    name=$(basename "$file" .yml)
    printf -- '---\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: %s\n  labels:\n' "$name"
    for label in app.kubernetes.io/part-of=trainwatch ${LABELS:-}; do
        printf '    %s: "%s"\n' "${label%%=*}" "${label#*=}"
    done
    printf 'spec:\n'
    sed 's/^\(.\)/  \1/' "$file"
done
