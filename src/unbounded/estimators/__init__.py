"""scikit-learn estimators over `unbounded.fit`; importing this imports scikit-learn."""

from unbounded.estimators.classifier import UDNClassifier as UDNClassifier
from unbounded.estimators.files import load as load
from unbounded.estimators.regressor import UDNRegressor as UDNRegressor
