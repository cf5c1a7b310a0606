"""scikit-learn: a grid of forests is searched in one process."""

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV

from trials.everyday.clock import GOOD, cost

x, y = make_classification(4000, 40, n_informative=20, random_state=1)
grid = {"n_estimators": [60, 120], "max_depth": [8, 12, 16]}
search = GridSearchCV(
    RandomForestClassifier(random_state=1), grid, cv=2, n_jobs=-1 if GOOD else 1
)  # the cause
with cost:
    search.fit(x, y)  # the cause
print(search.best_params_)
