package inbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_4_EarlierFailureIsNotFinal: an event failed finally, and while the events before it are decided, one of them
// fails for the first time. That one is run again, not parked.
func TestP9_4_EarlierFailureIsNotFinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "b", "c")
	runs := map[uuid.UUID]int{}
	h := w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, ev event.Event) error {
		switch runs[ev.ID]++; {
		case ev.ID == e[2].ID:
			return outcome.Terminal("refused", errBad)
		case ev.ID == e[0].ID && runs[ev.ID] == 2:
			return errBad // once
		}
		return write(ctx, tx, ev)
	})
	same(t, "outcomes", handle(t, h, e), []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Parked})
	same(t, "effects", w.effects(), ids(e[:2]))
	same(t, "parked", w.parked(), []string{"failed refused " + e[2].ID.String()})
}

// TestP9_5_LostAnswerOfACount: if the answer to a count is lost, it is unknown whether the run was counted. Such counts
// must not add up to CrashAttempts.
func TestP9_5_LostAnswerOfACount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unfinished(0, 1, 0)
	proxy := pgtest.NewProxy(t, w.URL)
	for range 4 {
		proxy.On(func(sql string) bool { return strings.HasPrefix(sql, "-- inbox: count a run") }, 0, pgtest.DropReply)
	}
	in := newInbox(t, pool(t, proxy.URL()), "ledger", small(inbox.Config{CrashAttempts: 2}))
	e := some(1)
	same(t, "outcomes", handle(t, in.Each(write), e), repeat(inbox.Applied, 1))
	same(t, "effects", w.effects(), ids(e))
}

// TestP9_6_LostAnswerOfACountedRelease is TestP9_5_LostAnswerOfACount for a released event.
func TestP9_6_LostAnswerOfACountedRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := pgtest.NewProxy(t, w.URL)
	s := &switchable{bad: map[uuid.UUID]error{}}
	released := make(chan inbox.ReleasedInfo, 1)
	in := newInbox(t, pool(t, proxy.URL()), "ledger",
		quick(small(inbox.Config{CrashAttempts: 2, Observer: inbox.Observer{
			Released: func(i inbox.ReleasedInfo) { released <- i },
		}})))
	h := in.Each(s.effect)
	e := keyed("a")
	s.bad[e[0].ID] = outcome.Terminal("x", errBad)
	same(t, "outcomes", handle(t, h, e), repeat(inbox.Parked, 1))
	s.mended.Store(true)
	counts := false // the next COMMIT is that of a count
	for range 4 {
		proxy.On(func(sql string) bool {
			if strings.HasPrefix(sql, "-- inbox: count a release") {
				counts = true
				return false
			}
			now := counts && pgtest.IsCommit(sql)
			counts = counts && !now
			return now
		}, 0, pgtest.DropReply)
	}
	w.releaseKey("a", 1)
	runs(t, in)
	if got := <-released; got.Outcome != inbox.Applied {
		t.Errorf("the released event is %v: %v", got.Outcome, got.Err)
	}
	same(t, "effects", w.effects(), ids(e))
}
