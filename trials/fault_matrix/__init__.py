"""How often is the cause named, with its rank or GPU and its cost, and how often is a healthy run accused?

`python -m trials.fault_matrix` plants faults in simulated runs in three severities, and writes down the truth
first. Then it compares the truth with report.json, the terminal and the alerts. trials/README.md has tables.
"""
