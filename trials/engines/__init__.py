"""The same runs on every engine that runs here: do the rules decide the same?

`python -m trials.engines` simulates the demo's scenarios and shared clusters once, and lets Prometheus of the
distribution and the newer one, and VictoriaMetrics with vmalert in two versions, evaluate the rules that are
rendered for them. trials/README.md has its table.
"""
