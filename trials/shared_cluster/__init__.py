"""A shared cluster with planted faults: are they found, with the right run, node and GPU, and nothing else?

`python -m trials.shared_cluster` simulates four nodes in two clusters with 20 runs of six users, in a few
minutes: real exporters over simulated hardware, scraped into a real Prometheus that evaluates the real rule
files. trials/README.md describes it and has its table.
"""
