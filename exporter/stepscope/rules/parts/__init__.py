"""The parts of rules: base class, parameters, PromQL, and what several rules share."""
