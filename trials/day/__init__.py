"""A day of a healthy shared cluster: how many notifications does it send, and to whom?

`python -m trials.day` simulates 20 nodes with 160 GPUs, 40 users and about 1,600 jobs: what their exporters
show at each scrape. A real Prometheus stores it and evaluates the rule files, and a model of Alertmanager
groups, inhibits and routes the alerts. trials/README.md describes it and has its table.
"""
