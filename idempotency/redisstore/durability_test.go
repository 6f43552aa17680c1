package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// crashedKey is what became of one key before the crash: what the server acknowledged, and what it may have heard.
type crashedKey struct {
	request            idempotency.Request
	claimOptions       store.ClaimOptions
	lease              store.Lease
	claimed, completed bool // acknowledged
	err                error
}

// TestCrash_AOFAlways: a server that flushes each write is killed during calls: acknowledged writes are there, others
// succeed when they are sent again.
func TestCrash_AOFAlways(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, "--appendonly", "yes", "--appendfsync", "always")
	s := open(t, redisAt(t, server.Addr(), func(o *redis.Options) { o.MaxRetries = -1 }), "p")
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	keys := make([][]*crashedKey, 8)
	var callers sync.WaitGroup
	for i := range keys {
		callers.Go(func() {
			for n := 0; ; n++ {
				f := &crashedKey{request: request(fmt.Sprint(i, "-", n), "c"), claimOptions: claimOptions(time.Hour)}
				keys[i] = append(keys[i], f)
				if f.run(t, s); f.err != nil {
					return
				}
				if acknowledged.Add(1) == 200 {
					close(enough)
				}
			}
		})
	}
	<-enough
	server.Kill()
	callers.Wait()
	server.Start(t)

	for _, some := range keys {
		for _, f := range some {
			rec, there, err := s.Get(t.Context(), f.request.Key)
			if err != nil {
				t.Fatal(err)
			}
			if f.claimed && (!there || rec.Fence != f.lease.Fence) || f.completed &&
				rec.State != idempotency.Completed {
				t.Errorf("acknowledged and forgotten: %+v is %+v", f, rec)
			}
			if f.err == nil {
				continue
			}
			if f.err = nil; !f.claimed {
				f.run(t, s)
			} else {
				f.err = s.Finish(t.Context(), f.lease, idempotency.Result{Code: 1}, idempotency.Retention{})
			}
			if f.err != nil {
				t.Errorf("sent again: %v", f.err)
			}
		}
	}
}

// run claims and finishes, up to the first error.
func (f *crashedKey) run(t *testing.T, s store.Store) {
	var got store.ClaimResult
	if got, f.err = s.Claim(t.Context(), f.request, f.claimOptions); f.err != nil {
		return
	}
	if !got.Won {
		f.err = fmt.Errorf("not won: %+v", got)
		return
	}
	f.claimed, f.lease = true, got.Lease
	if f.err = s.Finish(t.Context(), f.lease, idempotency.Result{Code: 1}, idempotency.Retention{}); f.err == nil {
		f.completed = true
	}
}

// ledger is a sink with the two defences that this store does not replace: a business key, and the highest fence seen.
type ledger struct {
	entries map[string]int64
	fence   int64
}

var errRefused = errors.New("refused")

func (l *ledger) enter(payment string, fence int64) error {
	if _, there := l.entries[payment]; there || fence < l.fence {
		return errRefused
	}
	l.entries[payment], l.fence = fence, fence
	return nil
}

// TestFailover_LosesWrites: a replica without the last write is promoted, and a second caller wins a key that a first
// one has. The package documents this: there is one entry because of the downstream business key, and the first
// caller's late write is refused by its fence.
func TestFailover_LosesWrites(t *testing.T) {
	t.Parallel()
	primary := redistest.New(t)
	cut := netcut.New(t, primary.Addr())
	replica := redistest.New(t, append([]string{"--replicaof"}, strings.Split(cut.Addr(), ":")...)...)
	old, promoted := redisAt(t, primary.Addr(), nil), redisAt(t, replica.Addr(), nil)
	first, second := open(t, old, "p"), open(t, promoted, "p")
	known := claimNew(t, first, request("known", "c"))
	pgtest.Await(t, "the replica has the first key", func() (bool, error) {
		n, err := promoted.Exists(t.Context(), recordName("p", known.Key)).Result()
		return n == 1, err
	})

	cut.Silence(t)
	r := request("k", "100 EUR")
	before := claimNew(t, first, r)
	sink := ledger{entries: map[string]int64{}}
	if err := sink.enter("payment-k", before.Fence); err != nil {
		t.Fatal(err)
	}
	primary.Kill()
	if err := promoted.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}

	if rec, there, err := second.Get(t.Context(), known.Key); err != nil || !there || rec.Fence != known.Fence {
		t.Fatal(rec, there, err)
	}
	after := claim(t, second, r, claimOptions(time.Minute))
	if !after.Won {
		t.Fatalf("the promoted replica knows what it never got: %+v", after)
	}
	if after.Lease.Fence <= before.Fence {
		t.Errorf("fence %d after %d: a forgotten counter must start from the clock", after.Lease.Fence, before.Fence)
	}
	if err := sink.enter("payment-k", after.Lease.Fence); !errors.Is(err, errRefused) {
		t.Error("the business key let a second effect through")
	}
	if err := sink.enter("payment-other", after.Lease.Fence); err != nil {
		t.Fatal(err)
	}
	if err := sink.enter("payment-late", before.Fence); !errors.Is(err, errRefused) {
		t.Error("the sink took the old owner's late write")
	}
	if err := second.Finish(t.Context(), before, idempotency.Result{}, idempotency.Retention{}); !errors.Is(err,
		store.ErrLeaseLost) {
		t.Errorf("the old owner's record: %v", err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings []string
		refused  bool
		warned   string // a part of the warning; empty: none
	}{
		"as it should be":       {settings: []string{"--appendonly", "yes", "--appendfsync", "always"}},
		"flushed every second":  {settings: []string{"--appendonly", "yes"}, warned: "appendfsync is everysec"},
		"not persistent":        {warned: "appendonly is off"},
		"evicts all":            {settings: []string{"--maxmemory-policy", "allkeys-lru"}, refused: true},
		"evicts what has a TTL": {settings: []string{"--maxmemory-policy", "volatile-ttl"}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, redisAt(t, redistest.New(t, c.settings...).Addr(), nil), "")
			warnings, err := s.Check(t.Context())
			if c.refused != errors.Is(err, redisstore.ErrEvicts) || !c.refused && err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(warnings, "\n"); !strings.Contains(all, c.warned) || c.warned == "" && all != "" {
				t.Fatalf("warnings: %q", all)
			}
		})
	}
}

// TestFull: a server without memory refuses a whole claim, and keeps existing keys.
func TestFull(t *testing.T) {
	t.Parallel()
	client := redisAt(t, redistest.New(t).Addr(), nil)
	s := open(t, client, "p")
	l := claimNew(t, s, request("before", ""))
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request("k", ""), claimOptions(time.Minute)); err == nil {
		t.Fatal("claimed without memory")
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if rec, there, err := s.Get(t.Context(), request("k", "").Key); there || err != nil {
		t.Fatalf("half a claim: %+v %v", rec, err)
	}
	stats, err := s.Stats(t.Context())
	if err != nil || stats.InProgress != 1 {
		t.Fatal(stats, err)
	}
	finish(t, s, l, idempotency.Result{})
}

// TestCluster: each script's keys are in one slot, and recovery finds keys in all slots.
func TestCluster(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, "--cluster-enabled", "yes")
	node := redisAt(t, server.Addr(), nil)
	if err := node.Do(t.Context(), "cluster", "addslotsrange", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the cluster is up", func() (bool, error) {
		info, err := node.ClusterInfo(t.Context()).Result()
		return strings.Contains(info, "cluster_state:ok"), err
	})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                    []string{server.Addr()},
		MaintNotificationsConfig: node.Options().MaintNotificationsConfig,
	})
	t.Cleanup(func() { _ = cluster.Close() })
	s := open(t, cluster, "")
	const keys = 100
	for i := range keys {
		l := claimNew(t, s, request(fmt.Sprint(i), ""))
		if err := s.MarkUnknown(t.Context(), l, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Recover(t.Context(), store.RecoverOptions{Limit: keys + 1, Lease: time.Minute, Token: "r"})
	if err != nil || len(got) != keys {
		t.Fatal(len(got), err)
	}
	for _, c := range got {
		finish(t, s, c.Lease, idempotency.Result{Body: []byte("b")})
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats != (store.Stats{}) {
		t.Fatal(stats, err)
	}
	if warnings, err := s.Check(t.Context()); err != nil || len(warnings) == 0 {
		t.Fatal(warnings, err)
	}
}
