// Package idempotencytest has the conformance tests of store.Store, also for your own stores: each sentence of the
// documentation of Store and Recoverer, bugs of other systems' stores, concurrent callers, random histories compared
// with the memory store, and linearizability with lost replies.
//
//	func TestStore(t *testing.T) {
//		idempotencytest.Run(t, func(t *testing.T) idempotencytest.Harness {
//			s := mystore.New(...) // empty
//			return idempotencytest.Harness{Store: s, Recoverer: s}
//		})
//	}
package idempotencytest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Harness is a store under test.
type Harness struct {
	Store     store.Store
	Recoverer store.Recoverer
	// Others are more clients of the same data, as of other processes, which concurrent tests use too. Nil: only Store.
	Others   []store.Store
	Features Features
}

// Features are allowed differences of a store. The zero value has none.
type Features struct {
	// ServerTTL: the server removes bodies and tombstones itself, at any time, and Sweep does not count them. Overdue
	// ones must not be visible.
	ServerTTL bool
	// OwnClocks: each client computes the server's time, so clients may disagree for a moment on whether a lease has
	// ended.
	OwnClocks bool
	// Tick is the shortest lease and retention that the store distinguishes from none. 0 is 1 ms.
	Tick time.Duration
	// MaxBody is the largest body, in bytes, that the store accepts. 0 is 1 MiB, the largest in the tests.
	MaxBody int
	// Histories is the number of random histories. 0 is 40; use fewer for a slow store.
	Histories int
}

// testCase is a test of the suite.
type testCase struct {
	name string
	own  bool // needs its own store, because it sweeps or counts
	run  func(t *testing.T, s *suite)
}

// suite is the argument of a test case. Its keys have their own operation, so that cases may share a store.
type suite struct {
	Harness
	op    string
	local bool // keys that are won have a local phase recorded
}

// Run runs all tests. open returns an empty store, or one that shares nothing with others; Run calls it once for most
// tests, and once more for each that sweeps or counts. open registers its cleanup with its t.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	shared := open(t)
	var cases []testCase
	for _, part := range [][]testCase{
		claims(), writes(), recoveries(), sweeps(), contents(), peers(), crowds(),
		histories(),
	} {
		cases = append(cases, part...)
	}
	for _, e := range cases {
		t.Run(e.name, func(t *testing.T) {
			h := shared
			if e.own {
				h = open(t)
			}
			if h.Features.Tick == 0 {
				h.Features.Tick = time.Millisecond
			}
			if h.Features.MaxBody == 0 {
				h.Features.MaxBody = 1 << 20
			}
			if h.Features.Histories == 0 {
				h.Features.Histories = 40
			}
			e.run(t, &suite{Harness: h, op: "op-" + rand.Text()})
		})
	}
}

// long is a lease, delay or retention that does not end within a test.
const long = time.Hour

// tick is a lease, delay or retention that ends at once.
func (s *suite) tick() time.Duration { return s.Features.Tick }

// command returns a request for a key, and for a command of that name.
func (s *suite) command(key, command string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "tenant", Operation: s.op, Value: key},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(command))},
		Input:       []byte(`{"command":"` + command + `"}`),
	}
}

// fresh returns a request with a new key.
func (s *suite) fresh() idempotency.Request { return s.command(rand.Text(), "pay 100") }

// other returns a request with the same key and another command.
func other(r idempotency.Request) idempotency.Request {
	r.Fingerprint.Sum = sha256.Sum256([]byte("pay 999"))
	return r
}

func (s *suite) claim(t *testing.T, r idempotency.Request, token string, lease time.Duration,
	rerun bool,
) store.ClaimResult {
	t.Helper()
	got, err := s.Store.Claim(t.Context(), r, store.ClaimOptions{Token: token, Lease: lease, Rerun: rerun})
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	if got.Won && (got.Lease.Key != r.Key || got.Lease.Token != token || got.Lease.Fence != got.Record.Fence ||
		got.Record.State != idempotency.InProgress) {
		t.Fatalf("the lease and the record of a won claim: %+v", got)
	}
	return got
}

// claimNew claims a free key, for long.
func (s *suite) claimNew(t *testing.T, r idempotency.Request) store.Lease {
	t.Helper()
	got := s.claim(t, r, rand.Text(), long, false)
	if !got.Won {
		t.Fatalf("not won: %+v", got.Record)
	}
	if s.local {
		ok(t, "save", s.Store.Save(t.Context(), got.Lease, localPhase()))
	}
	return got.Lease
}

// localPhase is a progress from which any attempt may continue.
func localPhase() store.Progress {
	return store.Progress{Stage: idempotency.LocalCreated, Steps: []store.Step{{Name: "local", State: store.StepDone}}}
}

// claimLapsed claims a key for an owner that crashes, and returns after the end of the lease.
func (s *suite) claimLapsed(t *testing.T, r idempotency.Request) store.Lease {
	t.Helper()
	if s.local {
		l := s.claimNew(t, r)
		ok(t, "extend", s.Store.Extend(t.Context(), l, s.tick()))
		s.awaitLeaseEnd(t, r.Key)
		return l
	}
	got := s.claim(t, r, rand.Text(), s.tick(), false)
	if !got.Won {
		t.Fatalf("not won: %+v", got.Record)
	}
	s.awaitLeaseEnd(t, r.Key)
	return got.Lease
}

// awaitLeaseEnd waits until each client sees the end of a key's lease.
func (s *suite) awaitLeaseEnd(t *testing.T, k idempotency.Key) {
	t.Helper()
	for _, client := range append([]store.Store{s.Store}, s.Others...) {
		await(t, "the end of the lease", func() bool {
			rec, there, err := client.Get(t.Context(), k)
			if err != nil || !there {
				t.Fatalf("get: there %v, %v", there, err)
			}
			return rec.LeaseLeft <= 0
		})
	}
}

func (s *suite) get(t *testing.T, k idempotency.Key) store.Record {
	t.Helper()
	rec, there, err := s.Store.Get(t.Context(), k)
	if err != nil || !there {
		t.Fatalf("get: there %v, %v", there, err)
	}
	if rec.Key != k {
		t.Fatalf("asked for %+v, got %+v", k, rec.Key)
	}
	return rec
}

func (s *suite) finish(t *testing.T, l store.Lease, res idempotency.Result, keep idempotency.Retention) {
	t.Helper()
	ok(t, "finish", s.Store.Finish(t.Context(), l, res, keep))
}

// recoverUpTo recovers up to limit keys of this suite's operation, for long.
func (s *suite) recoverUpTo(t *testing.T, limit int) []store.ClaimResult {
	t.Helper()
	return s.recover(t, store.RecoverOptions{Limit: limit, Lease: long})
}

func (s *suite) recover(t *testing.T, opt store.RecoverOptions) []store.ClaimResult {
	t.Helper()
	opt.Operations, opt.Token = []string{s.op}, rand.Text()
	got, err := s.Recoverer.Recover(t.Context(), opt)
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	for _, c := range got {
		if !c.Won || c.Lease.Key != c.Record.Key || c.Lease.Token != opt.Token || c.Lease.Fence != c.Record.Fence ||
			c.Record.State != idempotency.Unknown || c.Record.Attempts == 0 {
			t.Fatalf("the lease and the record of a recovered key: %+v", c)
		}
	}
	return got
}

// recovered makes a key unknown and lets a recoverer claim it, for long.
func (s *suite) recovered(t *testing.T, r idempotency.Request) store.ClaimResult {
	t.Helper()
	s.claimLapsed(t, r)
	return s.recoverOnly(t, r.Key)
}

// recoverOnly recovers the only key of this operation.
func (s *suite) recoverOnly(t *testing.T, k idempotency.Key) store.ClaimResult {
	t.Helper()
	got := s.recoverUpTo(t, 10)
	if len(got) != 1 || got[0].Record.Key != k {
		t.Fatalf("recovered %+v, want one", got)
	}
	return got[0]
}

// awaitForgotten waits for the end of a key's tombstone.
func (s *suite) awaitForgotten(t *testing.T, k idempotency.Key) {
	t.Helper()
	await(t, "the tombstone to be overdue", func() bool {
		_, there, err := s.Store.Get(t.Context(), k)
		return err == nil && !there
	})
}

// finishAndForget finishes a key and waits for the end of its tombstone.
func (s *suite) finishAndForget(t *testing.T, l store.Lease) {
	t.Helper()
	s.finish(t, l, result("x"), idempotency.Retention{Body: s.tick(), Tombstone: s.tick()})
	s.awaitForgotten(t, l.Key)
}

// awaitBodyEnd waits for the end of a key's body.
func (s *suite) awaitBodyEnd(t *testing.T, k idempotency.Key) {
	t.Helper()
	await(t, "the body to be overdue", func() bool { return s.get(t, k).State == idempotency.Expired })
}

func ok(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wantLost fails the test unless the write was refused.
func wantLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrLeaseLost) {
		t.Fatalf("%s: %v, want ErrLeaseLost", what, err)
	}
}

func wantState(t *testing.T, rec store.Record, want idempotency.State) {
	t.Helper()
	if rec.State != want {
		t.Fatalf("the state is %s, want %s: %+v", rec.State, want, rec)
	}
}

// result is a result with something in each field.
func result(body string) idempotency.Result {
	return idempotency.Result{
		Code: 201, Header: map[string][]string{"Content-Type": {"application/json"}, "Link": {"<a>", "<b>"}},
		Body: []byte(body), Resource: "payment/17", Schema: 3,
	}
}

// sameResult compares a stored result with the given one.
func sameResult(a, b idempotency.Result) bool {
	return maps.EqualFunc(a.Header, b.Header, slices.Equal[[]string]) && a.Code == b.Code &&
		bytes.Equal(a.Body, b.Body) && (a.Body == nil) == (b.Body == nil) &&
		a.Resource == b.Resource && a.Schema == b.Schema && a.Failure == b.Failure
}

// await polls until cond is true.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("timeout: %s", what)
		}
	}
}
