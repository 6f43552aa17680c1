package pgstore

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Config of a [Store]. The zero value is safe: every field has the default that its comment names.
type Config struct {
	// Schema holds the table: `^[a-z_][a-z0-9_]{0,62}$`. Empty: the connection's search_path decides, which poolers may
	// lose.
	Schema string

	// Wait is how long a caller waits for another transaction that holds its key, to return that one's result; default
	// 1 s, negative: not at all. Then the error is idempotency.ErrInProgress. However many callers of a process wait,
	// only one of them holds a connection.
	Wait time.Duration
	// Attempts is how often InTx runs a transaction that was rolled back: by a deadlock, a serialization failure, or a
	// COMMIT that got no reply. Default 3; 1 runs it once.
	Attempts int
	// Keep is how long InTx's keys are remembered; its zero value is 24 h for the result and 72 h for the tombstone.
	Keep idempotency.Retention

	// Logger gets a warning for each transaction that runs again and each COMMIT without a reply, never a key.
	// Default slog.Default().
	Logger *slog.Logger
	// Observer gets the outcome of each InTx and Within, for metrics, as a guard's Observer does.
	Observer idempotency.Observer
}

// minLockTimeout is the shortest lock_timeout: Postgres takes 0 as no time-out.
const minLockTimeout = time.Millisecond

// Store remembers keys in one table of Postgres. It is safe for concurrent use. Use New.
type Store struct {
	db  *pgxpool.Pool
	cfg Config
	log *slog.Logger
	sql statements
	// lockTimeout is Config.Wait as set_config wants it.
	lockTimeout string
	writer      string       // identifies this Store's saves
	seq         atomic.Int64 // numbers them
	flights     flights
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Recoverer = (*Store)(nil)
)

// New returns the store whose table is in db. It does not connect. An error says which field of the Config is wrong.
func New(db *pgxpool.Pool, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("pgstore: New needs a *pgxpool.Pool")
	}
	prefix, err := pgschema.Prefix(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	if cfg.Attempts < 0 {
		return nil, errors.New("pgstore: Attempts must not be negative: leave it zero for its default")
	}
	cfg.Attempts = cmp.Or(cfg.Attempts, 3)
	cfg.Wait = max(cmp.Or(cfg.Wait, time.Second), minLockTimeout)
	s := &Store{
		db: db, cfg: cfg, log: cfg.Logger, sql: newStatements(prefix), lockTimeout: timeoutSetting(cfg.Wait),
		writer: rand.Text(),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// timeoutSetting formats a duration for set_config, rounded up to milliseconds.
func timeoutSetting(d time.Duration) string {
	return fmt.Sprintf("%dms", (d+time.Millisecond-1)/time.Millisecond)
}

// statements have the schema's prefix filled in.
type statements struct {
	claim, regrant, takeOver, expireLease, claimTombstone, get         string
	extend, save, finish, release, markUnknown, postpone               string
	recover, expireBodies, deleteTombstones, moreOverdue, stats, stuck string
	deleteTombstone, insertResult, reserveBlock                        string
	tryLock, isLocked, awaitLock                                       string
}

func newStatements(prefix string) (t statements) {
	for to, sql := range map[*string]string{
		&t.claim: sqlClaim, &t.regrant: sqlRegrant, &t.takeOver: sqlTakeOver, &t.expireLease: sqlExpireLease,
		&t.claimTombstone: sqlClaimTombstone, &t.get: sqlGet, &t.extend: sqlExtend, &t.save: sqlSave,
		&t.finish: sqlFinish, &t.release: sqlRelease, &t.markUnknown: sqlMarkUnknown, &t.postpone: sqlPostpone,
		&t.recover: sqlRecover, &t.expireBodies: sqlExpireBodies, &t.deleteTombstones: sqlDeleteTombstones,
		&t.moreOverdue: sqlMoreOverdue, &t.stats: sqlStats, &t.stuck: sqlStuck,
		&t.deleteTombstone: sqlDeleteTombstone, &t.insertResult: sqlInsertResult, &t.reserveBlock: sqlReserveBlock,
		&t.tryLock: sqlTryLock, &t.isLocked: sqlIsLocked, &t.awaitLock: sqlAwaitLock,
	} {
		*to = pgschema.Expand(sql, prefix)
	}
	return t
}
