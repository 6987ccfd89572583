"""How many rows follow a position."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from azure_functions_db.adapter.plan import LIMIT

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.position import Position

_EVERYTHING = sys.maxsize


def counted(connection: Connection, plan: Plan, start: Position, most: int | None = None) -> int:
    """Count the rows after a position; a share that only Python can pick is estimated."""
    from sqlalchemy import func, select

    page = plan.page(start)
    count = select(func.count()).select_from(page.subquery("azfdb_counted"))
    parameters = {**plan.parameters(start.values), LIMIT: _EVERYTHING if most is None else most}
    rows = int(connection.execute(count, parameters).scalar_one())
    partition = plan.definition.partition
    return rows if partition is None or plan.partitions_in_sql else rows // partition.count
