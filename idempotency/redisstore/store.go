package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// buckets spread the keys over the slots of a cluster; a script touches one bucket. The number can never change,
// because stored keys would be looked for in other buckets.
const buckets = 32

// Config of a [Store]. The zero value is safe.
type Config struct {
	// Prefix begins the name of every Redis key: letters, digits and `_.:-`, at most 64. Empty: "effectonce". Stores
	// with the same prefix on a server share their keys; other prefixes are separate.
	Prefix string
}

// Store is a store.Store and a store.Recoverer over Redis 6.2 or later, a single server, Sentinel or a cluster. Its
// methods may be called from any goroutine.
//
// Redis itself expires bodies and tombstones, on time: Sweep has nothing to do.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	scripts scripts
	writer  string       // identifies this Store's saves
	seq     atomic.Int64 // numbers them
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Recoverer = (*Store)(nil)
	_ store.Lister    = (*Store)(nil)

	prefixes = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
)

// New returns a store on client, which stays the caller's to close. It does not connect: call Check once, when the
// program starts.
//
// The client may retry (MaxRetries): an attempt that is sent again is recognised by its token. A redis.Ring is refused:
// while a server is away, it sends that server's keys to another one, which does not have them.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = "effectonce"
	}
	if !prefixes.MatchString(cfg.Prefix) {
		return nil, fmt.Errorf("redisstore: prefix %q: 1 to 64 letters, digits and _.:- are allowed", cfg.Prefix)
	}
	if client == nil {
		return nil, errors.New("redisstore: a client is required")
	}
	if _, ring := client.(*redis.Ring); ring {
		return nil, errors.New("redisstore: a redis.Ring forgets a key when its server is away: use a single server, " +
			"Sentinel or a cluster")
	}
	return &Store{client: client, prefix: cfg.Prefix, scripts: newScripts(), writer: rand.Text()}, nil
}

// member returns a key's name in its bucket's lists. Its parts are printable, so a line feed separates them.
func member(k idempotency.Key) string { return k.Operation + "\n" + k.Tenant + "\n" + k.Value }

func keyOf(member string) (idempotency.Key, error) {
	parts := strings.Split(member, "\n")
	if len(parts) != 3 {
		return idempotency.Key{}, fmt.Errorf("redisstore: %d parts in a list's member, want 3: does another program "+
			"write under this prefix?", len(parts))
	}
	return idempotency.Key{Operation: parts[0], Tenant: parts[1], Value: parts[2]}, nil
}

// list returns the name of a Redis key of a bucket. The braces put a bucket's keys into one slot.
func (s *Store) list(bucket uint32, name string) string {
	return fmt.Sprintf("{%s:%02d}:%s", s.prefix, bucket, name)
}

// names are the KEYS of every script.
func (s *Store) names(member string) []string {
	b := crc32.ChecksumIEEE([]byte(member)) % buckets
	return []string{
		s.list(b, "r:"+member), s.list(b, "b:"+member), s.list(b, "fence"),
		s.list(b, "working"), s.list(b, "unknown"), s.list(b, "stuck"), s.list(b, "since"),
	}
}

func (s *Store) run(ctx context.Context, sc *redis.Script, k idempotency.Key, args ...any) *redis.Cmd {
	m := member(k)
	return sc.Run(ctx, s.client, s.names(m), append([]any{m}, args...)...)
}

// Claim implements store.Store. After an error of the server or the network the outcome is unknown: send the same claim
// again to find it out.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	rerun := 0
	if opt.Rerun {
		rerun = 1
	}
	body, tomb := opt.Keep.Terms()
	keep := fmt.Sprint(retention(body), " ", retention(tomb))
	args := []any{opt.Token, micros(opt.Lease), rerun, optional(r.Input), keep, formatFingerprint(r.Fingerprint)}
	for _, old := range r.Older {
		args = append(args, formatFingerprint(old))
	}
	won, rec, token, err := decode(r.Key, s.run(ctx, s.scripts.claim, r.Key, args...))
	if err != nil {
		return store.ClaimResult{}, fmt.Errorf("claim: %w", err)
	}
	out := store.ClaimResult{Won: won, Record: rec}
	if won {
		out.Lease = store.Lease{Key: r.Key, Fence: rec.Fence, Token: token}
	}
	return out, nil
}

// Get implements store.Store. It asks the primary, never a replica.
func (s *Store) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	if err := k.Check(); err != nil {
		return store.Record{}, false, err
	}
	there, rec, _, err := decode(k, s.run(ctx, s.scripts.get, k))
	if err != nil {
		return store.Record{}, false, fmt.Errorf("get: %w", err)
	}
	return rec, there, nil
}

// micros returns a duration in microseconds, rounded up, so that no lease is shorter than asked for.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d > 0 && d%time.Microsecond != 0 {
		us++
	}
	return us
}

// optional encodes bytes so that nil ("") and empty ("=") differ.
func optional(b []byte) string {
	if b == nil {
		return ""
	}
	return "=" + string(b)
}
