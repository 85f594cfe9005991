"""Names of the runs that the fixtures make."""

HOSTILE = "<img src=x onerror=alert(1)>&\"'"
