//go:build failpoints

package proof

import (
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// cut is a transaction whose COMMIT is cut, by a statement of it.
type cut struct {
	statement string
	alone     bool // it is a transaction by itself: the statement is cut
	prepare   func(t *testing.T, c *cell)
}

// cutsAt are the transactions of the protocol: append, claim, settle and what beside them moves events or rights; the
// inbox's batch, park and release, its bookkeeping of offsets and its days; and what operators do.
var cutsAt = []cut{
	{statement: "outbox: append many"},
	{statement: "outbox: schedule one"},
	{statement: "relay: take"},
	{statement: "relay: take marked"},
	{statement: "relay: drain"},
	{statement: "relay: list"},
	{statement: "relay: unmark", prepare: refusedKey},
	{statement: "relay: move due"},
	{statement: "relay: raise incarnation", prepare: otherTimeline},
	{statement: "relay: settle archived"},
	{statement: "relay: settle acked archived"},
	{statement: "relay: settle park", prepare: refusedKey},
	{statement: "relay: settle hold"},
	{statement: "relay: settle entries"},
	{statement: "relay: try"},
	{statement: "relay: renew"},
	{statement: "relay: release key", prepare: refusedKey},
	{statement: "relay: edit parked", prepare: refusedKey},
	{statement: "relay: fence", prepare: anotherOperator},
	{statement: "relay: replay", alone: true},
	{statement: "inbox: insert into the days"},
	{statement: "inbox: insert into any"},
	{statement: "inbox: pass"},
	{statement: "inbox: write the range", alone: true, prepare: anotherWorker},
	{statement: "inbox: count a run", alone: true, prepare: killedWorker},
	{statement: "inbox: quarantine"},
	{statement: "inbox: mark a key", prepare: poisonedKey},
	{statement: "inbox: park", prepare: poisonedKey},
	{statement: "inbox: count a release", prepare: poisonedKey},
	{statement: "inbox: leave the list", prepare: poisonedKey},
	{statement: "inbox: unmark", prepare: poisonedKey},
	{statement: "inbox: park a key again", prepare: poisonedKey},
	{statement: "inbox: release a key", prepare: poisonedKey},
	{statement: "inbox: make a day", prepare: inboxDays},
	{statement: "inbox: raise the mark"},
	{statement: "inbox: detach a day", alone: true, prepare: inboxDays},
	{statement: "inbox: drop a day", prepare: inboxDays, alone: true},
	{statement: "inbox: clean any", prepare: oldIDs},
}

// lateBy is how long a late COMMIT hangs in the network: long enough for its sender to have gone on, or to have tried
// to.
const lateBy = 200 * time.Millisecond

// TestCommitCuts loses the connection around the COMMIT of every transaction of the protocol, while everything runs:
// before Postgres has it, after it and before the answer is read, and so that it comes late. Whatever became of it,
// nothing is lost, nothing happens twice, no number is given twice, and order holds (P3.7, P9.3).
func TestCommitCuts(t *testing.T) {
	t.Parallel()
	c := emptyCell(t)
	c.cutAll(t, cutsAt)
	c.finish(t)
}

// cutAll starts everybody and cuts transactions in each way.
func (c *cell) cutAll(t *testing.T, all []cut) {
	t.Helper()
	proxy := pgtest.NewProxy(t, c.url)
	c.url = proxy.URL()
	c.startAll(t)
	for name, action := range map[string]pgtest.Action{
		"cut before": pgtest.CutBefore, "reply dropped": pgtest.DropReply, "cut after": pgtest.CutAfter, "late": pgtest.Late,
	} {
		n := 0
		for _, at := range all {
			if c.cut(t, proxy, at, action) {
				n++
			} else {
				t.Errorf("%s: the transaction of %q did not come within %v", name, at.statement, reachWithin)
			}
		}
		t.Logf("%s: %d transactions", name, n)
	}
}

// cut waits for a transaction and cuts it. What it needs is prepared when the trap is set: it may be over at once.
func (c *cell) cut(t *testing.T, proxy *pgtest.Proxy, at cut, action pgtest.Action) bool {
	t.Helper()
	began := time.Now()
	defer func() {
		if took := time.Since(began); took > slow {
			t.Logf("%s took %v", at.statement, took.Round(100*time.Millisecond))
		}
	}()
	for time.Since(began) < reachWithin {
		if c.cutOnce(t, proxy, at, action) {
			return true
		}
	}
	return false
}

func (c *cell) cutOnce(t *testing.T, proxy *pgtest.Proxy, at cut, action pgtest.Action) bool {
	t.Helper()
	match := func(sql string) bool { return strings.HasPrefix(sql, "-- "+at.statement+"\n") }
	set := proxy.OnCommitAfter
	if at.alone {
		set = func(match func(sql string) bool, action pgtest.Action) *pgtest.Trap {
			return proxy.On(match, 0, action)
		}
	}
	trap := set(match, action)
	defer trap.Release()
	if at.prepare != nil {
		at.prepare(t, c)
	}
	timer := time.NewTimer(reachWithin / 3)
	defer timer.Stop()
	select {
	case <-trap.Fired():
	case <-timer.C:
		// Left where it is, it would be sprung by the next try, in place of that one's own.
		if proxy.Withdraw(trap) {
			return false
		}
		<-trap.Fired()
	}
	if action == pgtest.Late {
		timer.Reset(lateBy)
		<-timer.C
	}
	return true
}
