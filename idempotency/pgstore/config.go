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

	// Wait is how long a caller waits for another one's transaction that has its key, to answer with what becomes of
	// that one; default 1 s, negative: not at all. Then the answer is idempotency.ErrInProgress. One caller of a
	// process holds a connection meanwhile, however many wait.
	Wait time.Duration
	// Attempts is how often InTx runs a transaction that Postgres ends for the sake of another one (deadlock,
	// serialization failure), or whose COMMIT got no reply and has not happened; default 3. 1 runs it once.
	Attempts int
	// Keep is how long InTx's keys are remembered; its zero value is 24 h for the result and 72 h for the tombstone.
	Keep idempotency.Retention

	// Logger is told of transactions that run again and of COMMITs without a reply. Nil: nothing is logged. Keys never
	// are.
	Logger *slog.Logger
	// Observer is told what InTx and Within answer, for metrics, as a guard's is.
	Observer idempotency.Observer
}

// shortest is the least lock_timeout that Postgres takes for one: 0 would be none.
const shortest = time.Millisecond

// Store remembers keys in one table of Postgres. It is safe for concurrent use. Use New.
type Store struct {
	db  *pgxpool.Pool
	cfg Config
	log *slog.Logger
	sql texts
	// lockTimeout is Config.Wait as set_config wants it.
	lockTimeout string
	writer      string       // tells this process' saves from another's
	seq         atomic.Int64 // orders them
	line        line
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
	cfg.Wait = max(cmp.Or(cfg.Wait, time.Second), shortest)
	s := &Store{
		db: db, cfg: cfg, log: cfg.Logger, sql: newTexts(prefix), lockTimeout: milliseconds(cfg.Wait),
		writer: rand.Text(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

// milliseconds is a duration as a time-out setting, rounded up.
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%dms", (d+time.Millisecond-1)/time.Millisecond)
}

// texts are the statements, with their schema.
type texts struct {
	claim, regrant, takeOver, note, regain, get, extend, save, finish, release, doubt, postpone string
	recover, erase, forget, more, stats, stuck                                                  string
	bury, write, block                                                                          string
}

func newTexts(prefix string) (t texts) {
	for to, sql := range map[*string]string{
		&t.claim: sqlClaim, &t.regrant: sqlRegrant, &t.takeOver: sqlTakeOver, &t.note: sqlNote, &t.regain: sqlRegain,
		&t.get: sqlGet, &t.extend: sqlExtend, &t.save: sqlSave, &t.finish: sqlFinish, &t.release: sqlRelease,
		&t.doubt: sqlDoubt, &t.postpone: sqlPostpone, &t.recover: sqlRecover, &t.erase: sqlErase, &t.forget: sqlForget,
		&t.more: sqlMore, &t.stats: sqlStats, &t.stuck: sqlStuck, &t.bury: sqlBury, &t.write: sqlWrite,
		&t.block: sqlBlock,
	} {
		*to = pgschema.Expand(sql, prefix)
	}
	return t
}
