package redisstore_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/internal/netcut"
	"github.com/effectonce/effectonce/idempotency/redisstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	ring, client := redis.NewRing(&redis.RingOptions{}), redisAt(t, "127.0.0.1:1", nil)
	t.Cleanup(func() { _ = ring.Close() })
	for name, open := range map[string]func() (*redisstore.Store, error){
		"no client": func() (*redisstore.Store, error) { return redisstore.New(nil, redisstore.Config{}) },
		"a ring":    func() (*redisstore.Store, error) { return redisstore.New(ring, redisstore.Config{}) },
		"a prefix with a brace": func() (*redisstore.Store, error) {
			return redisstore.New(client, redisstore.Config{Prefix: "a}b"})
		},
	} {
		if _, err := open(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestClaim_Lifecycle(t *testing.T) {
	t.Parallel()
	s := open(t, redisClient(t), redistest.Prefix())
	r := request("k", "100 EUR")
	lease := claimNew(t, s, r)
	if again := claim(t, s, r, claimOptions(time.Minute)); again.Won || again.Record.State != idempotency.InProgress ||
		again.Record.LeaseLeft <= 0 {
		t.Fatalf("%+v", again)
	}
	p := store.Progress{
		Stage: idempotency.LocalCreated,
		Steps: []store.Step{{Name: "a", State: store.StepDone, Key: "x", Data: []byte{0, 1, 255}}},
	}
	if err := s.Save(t.Context(), lease, p); err != nil {
		t.Fatal(err)
	}
	rec, there, err := s.Get(t.Context(), r.Key)
	if err != nil || !there || !reflect.DeepEqual(rec.Progress, p) || string(rec.Input) != "100 EUR" ||
		rec.Fence != lease.Fence || !r.Matches(rec.Fingerprint) {
		t.Fatal(rec, there, err)
	}
	want := idempotency.Result{
		Code: 201, Body: []byte("{\x00\xff}"), Header: map[string][]string{"Location": {"/p/1"}},
		Resource: "p1", Schema: 2,
	}
	finish(t, s, lease, want)
	finish(t, s, lease, idempotency.Result{Code: 500}) // sent again: the first stands
	got := claim(t, s, r, claimOptions(time.Minute))
	if got.Won || got.Record.State != idempotency.Completed || got.Record.Result.At.IsZero() ||
		got.Record.Input != nil {
		t.Fatalf("%+v", got)
	}
	want.At = got.Record.Result.At
	if !reflect.DeepEqual(got.Record.Result, want) {
		t.Fatalf("%+v, want %+v", got.Record.Result, want)
	}
	if other := claim(t, s, request("k", "200 EUR"), claimOptions(time.Minute)); other.Won ||
		request("k", "200 EUR").Matches(other.Record.Fingerprint) {
		t.Fatalf("%+v", other)
	}
}

// retryingStore returns a store whose client retries without a reply, the proxy of its connections, and the same store
// over another client.
func retryingStore(t *testing.T) (cut *netcut.Proxy, client *redis.Client, s, behind *redisstore.Store) {
	t.Helper()
	direct := redisClient(t)
	cut = netcut.New(t, direct.Options().Addr)
	client = redisAt(t, cut.Addr(), func(o *redis.Options) {
		// Each retry of a call may greet the server on a new connection, and repeats that greeting as often.
		o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 200, time.Millisecond, 5*time.Millisecond
		o.ReadTimeout = 200 * time.Millisecond // of a connection that the cut left half open
	})
	prefix := redistest.Prefix()
	return cut, client, open(t, client, prefix), open(t, direct, prefix)
}

// TestPeer_GoRedis2985_OwnSuccessIsNotLost: the client retries a claim whose reply was lost; with SETNX the retry would
// fail, and nobody would do the work.
func TestPeer_GoRedis2985_OwnSuccessIsNotLost(t *testing.T) {
	t.Parallel()
	cut, _, s, behind := retryingStore(t)
	claimNew(t, s, request("warm", "")) // the script is known

	heal := cut.DropReplies(t)
	r := request("k", "100 EUR")
	type reply struct {
		claimed store.ClaimResult
		err     error
	}
	replies := make(chan reply, 1)
	go func() {
		got, err := s.Claim(t.Context(), r, claimOptions(time.Minute))
		replies <- reply{got, err}
	}()
	var first store.Record
	pgtest.Await(t, "the claim's arrival", func() (there bool, err error) {
		first, there, err = behind.Get(t.Context(), r.Key)
		return there, err
	})
	heal()
	got := <-replies
	if got.err != nil || !got.claimed.Won || got.claimed.Lease.Fence != first.Fence {
		t.Fatalf("%+v, the first got the fence %d", got, first.Fence)
	}
}

// TestWrites_RepliesLost: a call whose reply is lost returns an error of an unknown outcome, and succeeds when it is
// sent again.
func TestWrites_RepliesLost(t *testing.T) {
	t.Parallel()
	direct := redisClient(t)
	cut := netcut.New(t, direct.Options().Addr)
	client := redisAt(t, cut.Addr(), func(o *redis.Options) { o.MaxRetries = -1 })
	s := open(t, client, redistest.Prefix())
	steps := map[string]func(l store.Lease) error{
		"extend": func(l store.Lease) error { return s.Extend(t.Context(), l, time.Minute) },
		"save": func(l store.Lease) error {
			return s.Save(t.Context(), l, store.Progress{Stage: idempotency.LocalCreated})
		},
		"finish": func(l store.Lease) error {
			return s.Finish(t.Context(), l, idempotency.Result{Code: 1}, idempotency.Retention{})
		},
		"release":      func(l store.Lease) error { return s.Release(t.Context(), l) },
		"mark unknown": func(l store.Lease) error { return s.MarkUnknown(t.Context(), l, "why", time.Minute) },
	}
	warm := claimNew(t, s, request("warm", ""))
	for _, do := range steps {
		_ = do(warm)
	}
	for name, do := range steps {
		l := claimNew(t, s, request(name, ""))
		heal := cut.DropReplies(t)
		err := do(l)
		heal()
		if err == nil || errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("%s with its reply lost: %v", name, err)
		}
		if err := do(l); err != nil {
			t.Errorf("%s, sent again: %v", name, err)
		}
	}
}

// TestFence_RisesWhenTheClockGoesBack: also after a release.
func TestFence_RisesWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	client, prefix := redisClient(t), redistest.Prefix()
	s := open(t, client, prefix)
	r := request("k", "")
	l := claimNew(t, s, r)
	if err := s.Release(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	// A counter that is ahead is what a clock that went back leaves behind.
	counters, err := client.Keys(t.Context(), "{"+prefix+":*}:fence").Result()
	if err != nil || len(counters) != 1 {
		t.Fatal(counters, err)
	}
	ahead := l.Fence + int64(time.Hour/time.Microsecond)
	if err := client.Set(t.Context(), counters[0], ahead, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if again := claimNew(t, s, r); again.Fence != ahead+1 {
		t.Fatalf("fence %d after %d", again.Fence, ahead)
	}
}

// TestSave_LateDuplicate: a duplicate of a save that arrives after the next save changes nothing.
func TestSave_LateDuplicate(t *testing.T) {
	t.Parallel()
	client := redisClient(t)
	s := open(t, client, redistest.Prefix())
	l := claimNew(t, s, request("k", ""))
	var sent [][]any
	client.AddHook(commandHook(func(args []any) { sent = append(sent, args) }))
	for _, stage := range []idempotency.Stage{idempotency.LocalCreated, idempotency.ProviderRequestSent} {
		if err := s.Save(t.Context(), l, store.Progress{Stage: stage}); err != nil {
			t.Fatal(err)
		}
	}
	// With the script unknown a save is sent by its hash and then whole.
	for _, args := range sent {
		if args[0] == "evalsha" {
			if err := client.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if rec, _, err := s.Get(t.Context(), l.Key); err != nil || rec.Progress.Stage != idempotency.ProviderRequestSent {
		t.Fatal(rec.Progress, err)
	}
}

// TestKeys_Expire: finished keys expire after their retention without a sweep; others never expire.
func TestKeys_Expire(t *testing.T) {
	t.Parallel()
	client, prefix := redisClient(t), redistest.Prefix()
	s := open(t, client, prefix)
	l := claimNew(t, s, request("k", ""))
	claimNew(t, s, request("open", ""))
	if err := s.Finish(t.Context(), l, idempotency.Result{Body: []byte("b")},
		idempotency.Retention{Body: time.Millisecond, Tombstone: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the tombstone's end", func() (bool, error) {
		keys, err := client.Keys(t.Context(), "{"+prefix+":*").Result()
		return len(keys) <= 5, err // of the other: record, fence, working, since; of this one: fence
	})
	if _, there, err := s.Get(t.Context(), l.Key); there || err != nil {
		t.Fatal(there, err)
	}
	keys, err := client.Keys(t.Context(), "{"+prefix+":*}:r:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if ttl, err := client.PTTL(t.Context(), keys[0]).Result(); err != nil || ttl != -1 {
		t.Fatalf("what is under way ends in %v %v", ttl, err)
	}
}

// TestRecover_KeysChangeAfterQuery: a recoverer gets no key that was extended, postponed or finished after its query.
func TestRecover_KeysChangeAfterQuery(t *testing.T) {
	t.Parallel()
	client, prefix := redisClient(t), redistest.Prefix()
	s, behind := open(t, client, prefix), open(t, redisClient(t), prefix)
	leases := map[string]store.Lease{}
	for _, name := range []string{"extended", "postponed", "finished"} {
		leases[name] = claim(t, s, request(name, ""), claimOptions(time.Microsecond)).Lease
	}
	if err := s.MarkUnknown(t.Context(), leases["postponed"], "", 0); err != nil {
		t.Fatal(err)
	}
	client.AddHook(afterPageHook(func() {
		for _, err := range []error{
			behind.Extend(t.Context(), leases["extended"], time.Minute),
			behind.Postpone(t.Context(), leases["postponed"], "", time.Minute, false),
			behind.Finish(t.Context(), leases["finished"], idempotency.Result{}, idempotency.Retention{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}))
	got, err := s.Recover(t.Context(), store.RecoverOptions{Limit: 10, Lease: time.Minute, Token: "r"})
	if err != nil || len(got) != 0 {
		t.Fatalf("%+v %v", got, err)
	}
}
