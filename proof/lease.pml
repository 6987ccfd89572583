/* The lease protocol: who may handle rows and move the checkpoint while machines pause and crash and answers get lost.

   Two processes poll one source whose last row is poison; an operator may rewind the checkpoint. Each step names the
   function that it stands for; between any two steps time may pass and the process may die. One row is one batch.
   Every rule on which safety or progress rests can be broken by a macro: tools/model.py does so, one by one. */

#define ROWS 2
#define POISON ROWS        /* its handler may fail whenever it is tried */
#define TTL 4
#define MARGIN 1           /* core/clocks.py lease_margin: a quarter of the ttl */
#ifndef SKEW
#define SKEW (2 * MARGIN)  /* how far two clocks may be apart, differently at each look: a margin on each side */
#endif
#ifndef TAKES
#define TAKES 4            /* how often the lease is taken at most: for the first row, to put aside, to take back, to do it anew */
#endif
#define NOBODY 2
#define FLOOR (-(MARGIN + SKEW))  /* every clock agrees that the lease is over */

/* The document (state/document.py). */
byte checkpoint;           /* rows 1..checkpoint were passed */
byte token;                /* of the last lease */
byte owner = NOBODY;
short left = FLOOR;        /* until its expiry */
bit released = 1;
byte noted;                /* the batch that was about to put rows aside; a batch bears the token of its lease */

/* The source and the quarantine, which know of no lease. */
byte acknowledged;         /* rows that the source has let go of */
byte aside;                /* the batch that has put the poison row into quarantine, 0: it is not there */
byte late;                 /* the batch of a removal that was given up and has yet to take effect, 0: none */
bit handled[ROWS + 1];

/* The two processes. */
byte mine[2];              /* the token of the lease that a process believes to hold, 0: none */
byte own[2];               /* trigger/lease.py Expiry: what its own clock leaves of it */
byte asked[2];             /* the same for what has been asked for and not been answered */
bit current[2];            /* whether the version that it has looked at is still the document's */
bit idle[2];
byte victim = NOBODY;      /* who is about to crash */

/* What may go wrong. */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REWINDS
#define REWINDS 1
#endif
byte crashes = CRASHES, rewinds = REWINDS, lost_replies = 1, late_removals = 1;
#ifdef FAIR                /* for progress: pauses are counted, too, and the handler takes longer than a lease */
byte pauses = 1, busy[2];
#endif

/* The properties. */
byte last_commit;
bit two_holders, overtaken, skipped, let_go;

#define LIVE(w) (mine[w] != 0 && own[w] > 0)
#define LOST(row) (checkpoint >= row && !handled[row] && !(row == POISON && aside))

inline judge() {
    two_holders = LIVE(0) && LIVE(1);
    skipped = LOST(1) || LOST(2);
    let_go = acknowledged > checkpoint;
#ifdef PROPERTY
    assert(!PROPERTY)
#else
    assert(!two_holders); assert(!overtaken); assert(!skipped); assert(!let_go)
#endif
}

#ifdef FAIR
ltl delivered { <> (checkpoint == ROWS && acknowledged >= ROWS - 1) }
#endif

/* The rules. */
#ifdef NO_FENCING          /* document.py _held_lease: it is the lease of this id */
#define HELD(me) true
#else
#define HELD(me) (owner == me && token == mine[me] && !released)
#endif
#ifdef NO_VERSION          /* store.py take: the document is still the one that was looked at */
#define UNCHANGED(me) true
#else
#define UNCHANGED(me) current[me]
#endif
#ifdef NO_OWN_CLOCK        /* lease.py check: our own clock says that there is time left */
#define IN_TIME(me) true
#else
#define IN_TIME(me) (own[me] > 0)
#endif
#ifdef NO_TAKER_MARGIN     /* document.py is_free: a taker waits for a margin behind the expiry */
#define WAIT 0
#else
#define WAIT MARGIN
#endif
#ifdef NO_HOLDER_MARGIN    /* lease.py Expiry: a holder stops a margin before it */
#define LENGTH TTL
#else
#define LENGTH (TTL - MARGIN)
#endif
#ifdef TAKES_BACK_ANY      /* quarantine.py take_back: a row is removed while it is the one of the batch */
#define REMOVE(batch) aside = 0
#else
#define REMOVE(batch) aside = (aside == batch -> 0 : aside)
#endif
#ifdef ACTS_WITHOUT_LOOK   /* tick.py _acknowledge: no act on a source, which knows no token, without a look at the clock */
#define MAY_ACT(me) true
#else
#define MAY_ACT(me) IN_TIME(me)
#endif
#ifdef NO_EXPIRY           /* document.py is_free: what was not given back is free in the end */
#define FREE released
#else
#define FREE (released || left <= SKEW - WAIT)   /* as some clock within the skew may see it */
#endif
#define MAY_WRITE(me) (IN_TIME(me) && HELD(me))

inline changed() { current[0] = 0; current[1] = 0 }      /* store.py swap: every version that was seen is an old one */
inline forget(me) { mine[me] = 0; own[me] = 0; asked[me] = 0 }
inline lose_reply() { lost_replies > 0; lost_replies-- }

#define RENEW_BELOW LENGTH
#ifdef FAIR
#define BEGIN_HANDLER busy[me] = TTL + 1
#define HANDLER_IS_OVER (busy[me] == 0)
#define END_HANDLER busy[me] = 0
#else
#define BEGIN_HANDLER skip
#define HANDLER_IS_OVER true
#define END_HANDLER skip
#endif

proctype Worker(byte me) {
    byte position;
    byte listed;           /* the batch whose row is to be taken back, 0: none */
    do
    :: { skip;
look:   /* lease.py approach, store.py look: a tick without work takes nothing; a lost answer's lease is retaken */
        atomic {
            idle[me] = 1; position = 0; listed = 0;
            (token < TAKES && checkpoint < ROWS && (FREE || owner == me));
            idle[me] = 0; position = checkpoint; current[me] = 1;
            listed = (position + 1 == POISON -> noted : 0);
            asked[me] = LENGTH
        }
take:   /* lease.py hold, store.py take: the time counts from the asking, and the write proves the look */
        atomic {
            if
            :: UNCHANGED(me) ->
               token++; owner = me; left = TTL; released = 0; changed();
               if
               :: mine[me] = token
               :: lose_reply(); asked[me] = 0; goto look
               fi
            :: !UNCHANGED(me) -> asked[me] = 0; goto look
            fi
        }
        /* lease.py _keep: the answer has come */
#ifdef COUNTS_FROM_REPLY
        atomic { own[me] = LENGTH; asked[me] = 0; judge() };
#else
        atomic { own[me] = asked[me]; asked[me] = 0; judge() };
#endif
#ifndef NO_ACKNOWLEDGE_AT_START
        /* tick.py _hold: a crash may have come between the last commit and its acknowledgement */
        atomic { if :: MAY_ACT(me) && acknowledged < position -> acknowledged = position; judge() :: else fi };
#endif
take_back: /* isolation.py _take_back: what a batch that was never committed has put aside is about to come again; the
              clock is not looked at, and a removal that is given up takes effect later or never */
        atomic { listed = (aside == listed -> listed : 0) };
        atomic {
            if
            :: listed != 0 -> REMOVE(listed); judge()
            :: listed != 0 && late_removals > 0 -> late_removals--; late = listed; listed = 0; goto give_back
            :: listed == 0
            fi;
            listed = 0; BEGIN_HANDLER
        }
handle: /* tick.py _handle, beside which lease.py Heartbeat.beat renews */
        do
        :: atomic { HANDLER_IS_OVER -> break }
        :: atomic { !IN_TIME(me) -> END_HANDLER; asked[me] = 0; goto give_back }
#ifndef NO_HEARTBEAT
        :: atomic { 0 < own[me] && own[me] < RENEW_BELOW && asked[me] == 0 -> asked[me] = LENGTH }
        :: atomic {
               asked[me] > 0 ->
               if
               :: HELD(me) ->
                  left = TTL; changed();
                  if
                  :: own[me] = (own[me] > 0 -> asked[me] : 0); judge()
                  :: lose_reply()
                  fi
               :: !HELD(me) -> own[me] = 0
               fi;
               asked[me] = 0
           }
#endif
        od;
        atomic {
            asked[me] = 0;
            if
            :: handled[position + 1] = 1; goto commit
#ifdef FAIR
            :: position + 1 == POISON
#else
            :: position + 1 == POISON
            :: position + 1 == POISON -> goto give_back  /* isolation.py _recover: it is tried again by a later tick */
#endif
            fi
        }
#ifndef ASIDE_AFTER_COMMIT
        /* isolation.py _put_aside: first the note, then the row; the commit that passes it comes last */
        atomic { if :: MAY_WRITE(me) -> noted = mine[me]; changed() :: else -> goto give_back fi };
        atomic { aside = mine[me]; judge() }
#endif
commit: /* tick.py _commit, lease.py commit, document.py committed: refused to whoever holds the lease no more */
#ifdef ACKNOWLEDGE_FIRST
        atomic { if :: MAY_ACT(me) && acknowledged <= position -> acknowledged = position + 1; judge() :: else fi };
#endif
        atomic {
            if
            :: MAY_WRITE(me) ->
               overtaken = mine[me] < last_commit; last_commit = mine[me];
               checkpoint = position + 1; noted = 0; changed();
#ifdef RELEASE_BEFORE_ACKNOWLEDGE
               released = 1;
#endif
               judge();
               if
               :: skip
               :: lose_reply(); goto give_back           /* tick.py _raise_unless_committed could not read it either */
               fi
            :: !MAY_WRITE(me) -> goto give_back
            fi
        }
        /* tick.py _go_on_after: of what was committed, while the lease is held */
        atomic { if :: MAY_ACT(me) && acknowledged <= position -> acknowledged = position + 1; judge() :: else fi };
give_back: /* tick.py _clear_up, document.py released: none but the lease of this id */
        atomic {
            if
            :: HELD(me) -> released = 1; changed()
            :: !HELD(me)
            :: lose_reply()
            fi;
            forget(me)
        }
    } unless {
        atomic {           /* what is started in its place is another owner, who knows nothing */
            victim == me;
            victim = NOBODY; forget(me); idle[me] = 0; current[me] = 0; position = 0; listed = 0; END_HANDLER;
            owner = (owner == me -> NOBODY : owner)
        }
    }
    od
}

#define DOWN(timer, floor) timer = (timer > floor -> timer - 1 : timer)
#define RUNNING (left > FLOOR || own[0] + own[1] + asked[0] + asked[1] > 0)
#ifdef FAIR   /* a step takes less than the unit of time, but for counted pauses */
#define AT_REST(w) (idle[w] || (busy[w] > 0 && asked[w] == 0 && (own[w] == 0 || own[w] == LENGTH || !HEARTBEAT)))
#ifdef NO_HEARTBEAT
#define HEARTBEAT false
#else
#define HEARTBEAT true
#endif
#define MAY_PASS (RUNNING && ((AT_REST(0) && AT_REST(1)) || pauses > 0))
#define PASS pauses = (AT_REST(0) && AT_REST(1) -> pauses : pauses - 1); DOWN(busy[0], 0); DOWN(busy[1], 0)
#else         /* any process may be paused anywhere for any time */
#define MAY_PASS RUNNING
#define PASS skip
#endif

active proctype World() {
    atomic { run Worker(0); run Worker(1) };
end:
    do
    :: atomic { victim == NOBODY && MAY_PASS -> PASS;
                DOWN(left, FLOOR); DOWN(own[0], 0); DOWN(own[1], 0); DOWN(asked[0], 0); DOWN(asked[1], 0) }
    :: atomic { victim == NOBODY && crashes > 0 -> crashes--; if :: victim = 0 :: victim = 1 :: skip fi }
    :: atomic { victim == NOBODY && late != 0 -> REMOVE(late); late = 0; judge() }
    :: atomic {   /* state/reset.py _rewrite: while no lease is alive, and to what the source still has */
           victim == NOBODY && rewinds > 0 && FREE && acknowledged < checkpoint ->
           rewinds--;
           if :: checkpoint = acknowledged; noted = 0; changed() :: skip fi
       }
    od
}

#ifdef FAIR
active proctype Nothing() { do :: true -> skip od }   /* where all others wait for ever, the run goes on for ever */
#endif
