package idempotencytest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// matrix has the outcome of each call in each situation, by the documentation of Store and Recoverer. Calls other than
// claims and Recover are the holder's; a stranger's are of another caller. See outcome and claimOutcome for the words.
const matrix = `
                      free   leased     lapsed     waiting    due        recovering stuck    done   refused stale  expired
Claim                 grant  deny       expire     deny       deny       deny       deny     deny   deny    deny   deny
Claim_again           grant  regrant    regrant    deny       deny       deny       deny     deny   deny    deny   deny
Claim_rerun           grant  deny       takeover   takeover   takeover   deny       takeover deny   deny    deny   deny
Claim_local           grant  deny       takeover   takeover   takeover   deny       takeover deny   deny    deny   deny
Claim_other           grant  deny       deny       deny       deny       deny       deny     deny   deny    deny   deny
Extend                lost   renew      renew      lost       lost       renew      lost     lost   lost    lost   lost
Save                  lost   update     lost       lost       lost       update     lost     lost   lost    lost   lost
Finish                lost   complete   complete   complete   complete   complete   complete noop   noop    noop   noop
Finish_failure        lost   refuse     refuse     refuse     refuse     refuse     refuse   noop   noop    noop   noop
Release               noop   remove     remove     remove     remove     remove     remove   lost   lost    lost   lost
MarkUnknown           lost   reschedule reschedule reschedule reschedule reschedule noop     lost   lost    lost   lost
Postpone              lost   lost       lost       reschedule reschedule reschedule noop     lost   lost    lost   lost
Postpone_stuck        lost   lost       lost       markStuck  markStuck  markStuck  noop     lost   lost    lost   lost
Recover               skip   skip       assign     skip       assign     skip       skip     skip   skip    skip   skip
strangers_Extend      lost   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
strangers_Save        lost   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
strangers_Finish      lost   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
strangers_Release     noop   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
strangers_MarkUnknown lost   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
strangers_Postpone    lost   lost       lost       lost       lost       lost       lost     lost   lost    lost   lost
`

// runMatrix tests each cell.
func runMatrix(t *testing.T, s *suite) {
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	situations := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		if len(cells) != len(situations)+1 {
			t.Fatalf("%q has %d cells, want %d", cells[0], len(cells)-1, len(situations))
		}
		t.Run(cells[0], func(t *testing.T) {
			for i, situation := range situations {
				cell := &suite{Harness: s.Harness, op: "op-" + rand.Text(), local: cells[0] == "Claim_local"}
				r := cell.fresh()
				l := cell.arrange(t, r, situation)
				if got := cell.outcome(t, r, l, cells[0]); got != cells[i+1] {
					t.Errorf("%s: %s, want %s", situation, got, cells[i+1])
				}
			}
		})
	}
}

// arrange brings a key into a situation, and returns the holder's lease.
func (s *suite) arrange(t *testing.T, r idempotency.Request, situation string) store.Lease {
	t.Helper()
	switch situation {
	case "free":
		return store.Lease{Key: r.Key, Fence: 1, Token: rand.Text()}
	case "leased":
		return s.claimNew(t, r)
	case "lapsed":
		return s.claimLapsed(t, r)
	case "waiting":
		l := s.claimNew(t, r)
		ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "later", long))
		return l
	case "due":
		l := s.claimLapsed(t, r)
		if s.local { // a claim would take it over
			ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "now", 0))
			return l
		}
		wantState(t, s.claim(t, r, rand.Text(), long, false).Record, idempotency.Unknown)
		return l
	case "recovering":
		return s.recovered(t, r).Lease
	case "stuck":
		l := s.recovered(t, r).Lease
		ok(t, "postpone", s.Recoverer.Postpone(t.Context(), l, "a person's", 0, true))
		return l
	case "done":
		l := s.claimNew(t, r)
		s.finish(t, l, result("done"), idempotency.Retention{})
		return l
	case "refused":
		l := s.claimNew(t, r)
		res := result("no")
		res.Failure = "declined"
		s.finish(t, l, res, idempotency.Retention{})
		return l
	}
	l := s.claimNew(t, r)
	s.finish(t, l, result("gone"), idempotency.Retention{Body: s.tick()})
	s.awaitBodyEnd(t, r.Key)
	if situation == "expired" {
		await(t, "a sweep without more", func() bool {
			swept, err := s.Recoverer.Sweep(t.Context(), 1000)
			ok(t, "sweep", err)
			return !swept.More
		})
	}
	return l
}

// outcome makes a call, and returns its outcome as a word of the matrix.
func (s *suite) outcome(t *testing.T, r idempotency.Request, l store.Lease, call string) string {
	t.Helper()
	before, found, err := s.Store.Get(t.Context(), r.Key)
	ok(t, "get", err)
	if stranger, isStranger := strings.CutPrefix(call, "strangers_"); isStranger {
		call = stranger
		if found {
			// The fence with another token, and the token with another fence.
			wrong := l
			wrong.Fence--
			wantLost(t, call+" under another fence", s.write(t, wrong, call))
		}
		l.Token = rand.Text()
	}
	if strings.HasPrefix(call, "Claim") {
		return s.claimOutcome(t, r, l, call, before, found)
	}
	if call == "Recover" {
		got := s.recoverUpTo(t, 10)
		if len(got) == 0 {
			return s.unchanged(t, r.Key, before, found, "skip")
		}
		if got[0].Lease.Fence <= before.Fence || got[0].Record.Attempts != before.Attempts+1 ||
			got[0].Record.LeaseLeft <= 0 {
			return fmt.Sprintf("claimed as %+v", got)
		}
		return "assign"
	}
	err = s.write(t, l, call)
	if errors.Is(err, store.ErrLeaseLost) {
		return s.unchanged(t, r.Key, before, found, "lost")
	}
	ok(t, call, err)
	after, foundAfter, err := s.Store.Get(t.Context(), r.Key)
	ok(t, "get", err)
	switch {
	case !found && !foundAfter:
		return "noop"
	case !foundAfter:
		return "remove"
	case after.Fence != before.Fence:
		return "the fence changed"
	case after.State == idempotency.Completed && before.State != after.State &&
		sameResult(after.Result, result("second")) && after.Input == nil:
		return "complete"
	case after.State == idempotency.FailedReplayable && before.State != after.State &&
		after.Result.Failure == "again" && after.Input == nil:
		return "refuse"
	case after.State == before.State && after.LeaseLeft > long:
		return "renew"
	case after.State == before.State && len(after.Progress.Steps) > len(before.Progress.Steps):
		return "update"
	case after.State == idempotency.Unknown && after.Stuck && !before.Stuck && after.Reason == "second" &&
		after.LeaseLeft <= 0:
		return "markStuck"
	case after.State == idempotency.Unknown && after.Reason == "second" && after.LeaseLeft <= 0 && !after.Stuck:
		return "reschedule"
	}
	return s.unchanged(t, r.Key, before, found, "noop")
}

// write makes a call under a lease, with contents that outcome recognises.
func (s *suite) write(t *testing.T, l store.Lease, call string) error {
	t.Helper()
	ctx := t.Context()
	res := result("second")
	switch call {
	case "Extend":
		return s.Store.Extend(ctx, l, 3*long)
	case "Save":
		return s.Store.Save(ctx, l, store.Progress{
			Stage: idempotency.LocalCreated,
			Steps: []store.Step{{Name: "a", State: store.StepDone}},
		})
	case "Finish":
		return s.Store.Finish(ctx, l, res, idempotency.Retention{})
	case "Finish_failure":
		res.Failure = "again"
		return s.Store.Finish(ctx, l, res, idempotency.Retention{})
	case "Release":
		return s.Store.Release(ctx, l)
	case "MarkUnknown":
		return s.Store.MarkUnknown(ctx, l, "second", long)
	case "Postpone", "Postpone_stuck":
		return s.Recoverer.Postpone(ctx, l, "second", long, call == "Postpone_stuck")
	}
	t.Fatalf("no call %q", call)
	return nil
}

// claimOutcome is outcome for a claim.
func (s *suite) claimOutcome(t *testing.T, r idempotency.Request, l store.Lease, call string, before store.Record,
	found bool,
) string {
	t.Helper()
	token := rand.Text()
	if call == "Claim_again" {
		token = l.Token
	}
	if call == "Claim_other" {
		r = other(r)
	}
	got := s.claim(t, r, token, 3*long, call == "Claim_rerun")
	fence := got.Record.Fence
	switch {
	case got.Won && got.Record.LeaseLeft <= long:
		return "won, without a new lease"
	case got.Won && !found:
		return "grant"
	case got.Won && fence == before.Fence:
		return "regrant"
	case got.Won && fence > before.Fence && !got.Record.Stuck && got.Record.Attempts == before.Attempts:
		return "takeover"
	case !got.Won && before.State == idempotency.InProgress && got.Record.State == idempotency.Unknown &&
		fence == before.Fence:
		return "expire"
	case !got.Won && found:
		if !sameResult(got.Record.Result, before.Result) {
			return "returned another result"
		}
		return s.unchanged(t, r.Key, before, found, "deny")
	}
	return fmt.Sprintf("%+v", got)
}

// unchanged returns the word if the record is unchanged.
func (s *suite) unchanged(t *testing.T, k idempotency.Key, before store.Record, found bool, word string) string {
	t.Helper()
	after, foundAfter, err := s.Store.Get(t.Context(), k)
	ok(t, "get", err)
	switch {
	case foundAfter != found:
		return fmt.Sprintf("%s, but found before: %v, after: %v", word, found, foundAfter)
	case after.State != before.State, after.Fence != before.Fence, after.Stuck != before.Stuck,
		after.Reason != before.Reason, after.Attempts != before.Attempts, after.LeaseLeft > before.LeaseLeft,
		!sameResult(after.Result, before.Result), len(after.Progress.Steps) != len(before.Progress.Steps),
		after.Fingerprint != before.Fingerprint:
		return fmt.Sprintf("%s, but it changed from %+v to %+v", word, before, after)
	}
	return word
}
