"""Every command with what it reads and writes: what each of them has to do without, and when it cannot."""

from __future__ import annotations

from dataclasses import dataclass

STATE, SOURCE, QUARANTINE = "state", "source", "quarantine"
SAVED = "saved.json"


@dataclass(frozen=True)
class Command:
    """One command line about the poller ``orders``."""

    line: str
    reads: frozenset[str]
    writes: frozenset[str] = frozenset()
    is_report: bool = False
    """Whether it tells of troubles in what it prints, with exit code 1."""
    takes_store: bool = False
    """Whether a store's URL will do in place of an app."""

    def words(self, poller: str = "orders") -> tuple[str, ...]:
        return tuple(poller if word == "orders" else word for word in self.line.split())

    def needs(self, broken: set[str], read_only: set[str]) -> bool:
        """Tell whether it cannot do without what is broken, or may only be read."""
        return bool(self.reads & broken or self.writes & (broken | read_only))


def command(line: str, *reads: str, writes: str = "", report: bool = False, store: bool = False) -> Command:
    return Command(line, frozenset(reads), frozenset(writes.split()), report, store)


COMMANDS = [
    command("status orders", STATE, SOURCE, QUARANTINE, report=True, store=True),
    command("doctor orders", STATE, SOURCE, QUARANTINE, report=True),
    command("inspect orders", STATE, store=True),
    command("export orders", STATE, store=True),
    command("tail orders", STATE, SOURCE),
    command("verify orders", STATE, SOURCE, QUARANTINE),
    command("verify orders --sample 0.5", STATE, SOURCE, QUARANTINE),
    command("reset orders --to-beginning --yes", STATE, writes=STATE, store=True),
    command(f"reset orders --to-checkpoint {SAVED} --yes", STATE, writes=STATE, store=True),
    command("reset orders --to-cursor 1 --pk id=1 --yes", STATE, SOURCE, writes=STATE),
    command("reset orders --adopt-fingerprint --yes", STATE, writes=STATE),
    command("clone orders copy --yes", STATE, writes=STATE, store=True),
    command("lease break orders --yes", STATE, writes=STATE, store=True),
    command("backfill orders --as again", STATE, SOURCE, writes=STATE),
    command("quarantine list --poller orders", QUARANTINE),
    command("quarantine show ID --poller orders", QUARANTINE),
    command("quarantine replay --all --poller orders", QUARANTINE, writes=QUARANTINE),
    command("quarantine drop --all --yes --poller orders", QUARANTINE, writes=QUARANTINE),
]
CHANGES = [each for each in COMMANDS if STATE in each.writes and "backfill" not in each.line]
