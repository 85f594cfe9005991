"""Tables for other programs, by pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas


def csv_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV with a line of names, UTF-8; what a row lacks is empty.

    Args:
        rows: Values by the names of the columns.
    """
    text: str = pandas.DataFrame.from_records(list(rows)).to_csv(index=False)
    return text.encode()
