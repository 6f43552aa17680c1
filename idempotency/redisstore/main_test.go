package redisstore_test

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/redisstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

func TestMain(m *testing.M) { child.Main(m, redistest.Stop) }

func open(t *testing.T, client redis.UniversalClient, prefix string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, redisstore.Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func request(key, command string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "t", Operation: "payment.create", Value: key},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(command))},
		Input:       []byte(command),
	}
}

func claimOptions(lease time.Duration) store.ClaimOptions {
	return store.ClaimOptions{Token: rand.Text(), Lease: lease}
}

func claim(t *testing.T, s store.Store, r idempotency.Request, opt store.ClaimOptions) store.ClaimResult {
	t.Helper()
	got, err := s.Claim(t.Context(), r, opt)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func claimNew(t *testing.T, s store.Store, r idempotency.Request) store.Lease {
	t.Helper()
	got := claim(t, s, r, claimOptions(time.Minute))
	if !got.Won {
		t.Fatalf("not won: %+v", got)
	}
	return got.Lease
}

func finish(t *testing.T, s store.Store, l store.Lease, res idempotency.Result) {
	t.Helper()
	if err := s.Finish(t.Context(), l, res, idempotency.Retention{}); err != nil {
		t.Fatal(err)
	}
}

// recordName returns the name of a key's record in Redis.
func recordName(prefix string, k idempotency.Key) string {
	member := k.Operation + "\n" + k.Tenant + "\n" + k.Value
	return fmt.Sprintf("{%s:%02d}:r:%s", prefix, crc32.ChecksumIEEE([]byte(member))%32, member)
}

// BenchmarkNew: a claim and its finish, two round trips.
func BenchmarkNew(b *testing.B) {
	s, err := redisstore.New(redisClient(b), redisstore.Config{Prefix: redistest.Prefix()})
	if err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			got, err := s.Claim(b.Context(), request(rand.Text(), "c"), claimOptions(time.Minute))
			if err != nil || !got.Won {
				b.Errorf("%+v %v", got, err)
				return
			}
			if err := s.Finish(b.Context(), got.Lease, idempotency.Result{Code: 201, Body: make([]byte, 256)},
				idempotency.Retention{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkReplay: a claim of a completed key, one round trip.
func BenchmarkReplay(b *testing.B) {
	s, err := redisstore.New(redisClient(b), redisstore.Config{Prefix: redistest.Prefix()})
	if err != nil {
		b.Fatal(err)
	}
	r := request("k", "c")
	got, err := s.Claim(b.Context(), r, claimOptions(time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Finish(b.Context(), got.Lease, idempotency.Result{Code: 201, Body: make([]byte, 256)},
		idempotency.Retention{}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if got, err := s.Claim(b.Context(), r, claimOptions(time.Minute)); err != nil ||
				got.Record.State != idempotency.Completed {
				b.Errorf("%+v %v", got, err)
				return
			}
		}
	})
}
