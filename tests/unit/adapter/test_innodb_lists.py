"""Who is who in the lists of a MySQL or MariaDB server."""

from __future__ import annotations

import json

import pytest

from azure_functions_db.sources.keyset.horizon import Transaction
from azure_functions_db.sources.keyset.horizon_mysql import (
    _InnodbTransaction,
    _key,
    _mark,
    _recognised,
    _shown,
    _Statement,
)

STATUS = """
LIST OF TRANSACTIONS FOR EACH SESSION:
---TRANSACTION (0x7f2d9511c780), not started
mysql tables in use 1, locked 1
0 lock struct(s), heap size 1128, 0 row lock(s)
---TRANSACTION 19, ACTIVE 7 sec inserting
mysql tables in use 1, locked 1
1 lock struct(s), heap size 1128, 0 row lock(s), undo log entries 1
MariaDB thread id 7, OS thread handle 131037517653696, query id 12 127.0.0.1 azfdb User sleep
INSERT INTO changes VALUES ('
---TRANSACTION 99, not started
MySQL thread id 8, OS thread handle 1, query id 1 x
')
---TRANSACTION 20, ACTIVE (PREPARED) 30 sec
1 lock struct(s), heap size 1128, 0 row lock(s), undo log entries 1
---TRANSACTION 21, COMMITTED IN MEMORY
MySQL thread id 9, OS thread handle 131037517653696, query id 13 127.0.0.1 azfdb
---TRANSACTION 421789012345678, ACTIVE 0 sec
MySQL thread id 10, OS thread handle 131037517653696, query id 14 127.0.0.1 azfdb nonce
--------
FILE I/O
--------
"""


def test_a_status_shows_who_has_begun() -> None:
    assert list(_shown(STATUS, 1000, 1, "nonce")) == [
        (_InnodbTransaction(7, 19, 993, 1), False),
        (_InnodbTransaction(0, 20, 970, 1), False),
        (_InnodbTransaction(9, 21, None, 1), False),
        (_InnodbTransaction(10, None, 1000, 1), True),
    ]


@pytest.mark.parametrize("mark", [_InnodbTransaction(7, None, 993), _InnodbTransaction(7, 19, None, 2), _Statement(7)])
def test_a_key_means_the_same_to_every_process(mark: _InnodbTransaction | _Statement) -> None:
    assert _mark(json.loads(json.dumps(_key(mark)))) == mark


SEEN = _InnodbTransaction(7, None, 993)


@pytest.mark.parametrize(
    ("earlier", "later", "same"),
    [
        (SEEN, SEEN, True),
        (SEEN, _InnodbTransaction(7, 19, 993), True),  # it has begun to write
        (SEEN, _InnodbTransaction(0, 19, 993), True),  # it was prepared, and its session has gone
        (SEEN, _InnodbTransaction(8, None, 993), False),
        (SEEN, _InnodbTransaction(7, None, 994), False),
        (SEEN, _InnodbTransaction(7, None, 994, 1), True),  # as a text tells it
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(0, 19, 2000), True),  # prepared before a restart
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 19, 2000, 1), False),  # a text that does not grow older
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 20, 993), False),
        (SEEN, _InnodbTransaction(7, 19, None, 1), True),  # about to end
        (_InnodbTransaction(7, 19, None, 1), _InnodbTransaction(7, 19, None, 1), False),
        (SEEN, _Statement(7), False),
        (_Statement(7), _Statement(7), True),
        (_Statement(7), _Statement(8), False),
        (_Statement(7), SEEN, False),
    ],
)
def test_whoever_is_still_there_is_recognised(
    earlier: _InnodbTransaction | _Statement, later: _InnodbTransaction | _Statement, same: bool
) -> None:
    assert earlier.may_be(later) is same


def listed(mark: _InnodbTransaction | _Statement) -> Transaction:
    return Transaction(_key(mark), str(mark.thread), None, writes=False, mark=mark)


def test_whoever_is_still_there_keeps_his_key_and_no_two_share_one() -> None:
    earlier = [listed(SEEN)]
    prepared, anew = listed(_InnodbTransaction(0, 19, 993)), listed(SEEN)

    (kept,) = _recognised([listed(_InnodbTransaction(7, 19, 993))], earlier)
    assert kept.key == earlier[0].key
    assert [holder.key for holder in _recognised([prepared, anew], earlier)] == [prepared.key, anew.key]
    assert {holder.key for holder in _recognised([prepared, prepared], earlier)} >= {earlier[0].key, prepared.key}
