"""`azfdb plan`: what a workload takes, before it is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import duration, indented, number, pairs, stacked, text
from azure_functions_db.cli.options import AsJson, Exit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from azure_functions_db.operations.plan import CapacityPlan, Limit


def plan(
    rows_per_second: Annotated[float, typer.Option("--rows-per-second", metavar="N", help="How many rows change.")],
    handler_ms: Annotated[float, typer.Option("--handler-ms", metavar="MS", help="What the handler takes for a row.")],
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Rows in a batch; chosen otherwise.")
    ] = None,
    batch_ms: Annotated[
        float, typer.Option("--batch-ms", metavar="MS", help="What reading and committing a batch take.")
    ] = 50,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="How far apart the ticks of a partition are.")
    ] = 10,
    linger: Annotated[
        float, typer.Option("--linger", metavar="SECONDS", help="How long a tick stays for rows to come.")
    ] = 0,
    per_worker: Annotated[
        int, typer.Option("--per-worker", metavar="N", help="How many partitions a worker serves at once.")
    ] = 4,
    memory_mb: Annotated[int, typer.Option("--memory-mb", metavar="MB", help="The memory of a worker.")] = 2048,
    lease_ttl: Annotated[float, typer.Option("--lease-ttl", metavar="SECONDS", help="How long a lease lives.")] = 120,
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="NAME=DOLLARS",
            help="A price of your own: read, write, queue, execution (a thousand each) or gb_second.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many partitions, workers and requests a workload takes, and what thirty days of it cost.

    Nothing is contacted: it is arithmetic on what the tests count and the benchmarks measure. Exit code 1 when a
    limit is nearer than half.
    """
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.plan import Workload, planned, prices_of

    workload = Workload(
        rows_per_second=rows_per_second,
        handler_ms=handler_ms,
        batch_size=batch_size,
        batch_ms=batch_ms,
        interval_seconds=interval,
        linger_seconds=linger,
        per_worker=per_worker,
        memory_mb=memory_mb,
        lease_ttl_seconds=lease_ttl,
    )
    found = planned(workload, prices_of(price or ()))
    show(found, _screen, as_json=as_json)
    raise typer.Exit(Exit.FAILED if any(limit.grade == "warning" for limit in found.limits) else Exit.OK)


def _screen(found: CapacityPlan, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    size = {
        "partitions": f"{number(found.partitions)}, of which {found.busy_partitions:g} are busy on average",
        "workers": number(found.workers),
        "batch size": number(found.batch_size),
        "delay": f"at most {duration(found.delay_seconds)} while all is well",
        "catching up": f"{duration(found.catch_up_hours * 3600)} after an outage of an hour",
    }
    month = {
        "storage": f"{number(found.storage_reads)} reads, {number(found.storage_writes)} writes",
        "queue": f"{number(found.queue_operations)} operations",
        "functions": f"{number(found.executions)} executions, {number(found.gb_seconds)} GB-seconds",
        "costs": ", ".join(f"{what} {cost:,.2f} $" for what, cost in found.costs.items()),
        "in all": f"{found.total:,.2f} $",
    }
    return stacked(
        _block("It takes", size.items()),
        _block("In thirty days", month.items()),
        _block("Of what there is", ((limit.what, _used(limit)) for limit in found.limits), _warned(found.limits)),
    )


def _block(title: str, facts: Iterable[tuple[str, str]], style: str = "") -> RenderableType:
    return stacked(text(title, "bold"), indented(pairs((name, text(told, style)) for name, told in facts), below=1))


def _used(limit: Limit) -> str:
    return f"{limit.used:,.1f} of {number(limit.most)}{', which is near' if limit.grade == 'warning' else ''}"


def _warned(limits: Sequence[Limit]) -> str:
    return "yellow" if any(limit.grade == "warning" for limit in limits) else ""
