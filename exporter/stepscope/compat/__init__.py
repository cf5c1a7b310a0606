"""Other tools' Python interfaces over the runs of Stepscope, so that their notebooks keep working."""
