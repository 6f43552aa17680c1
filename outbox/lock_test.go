package outbox_test

import (
	"database/sql"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
)

// advisory locks belong to a database, and pg_locks shows those of all.
const advisory = "from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where " +
	"datname = current_database())"

func TestLockKeysMakesTheSecondWait(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	holder, other := db.Connect(t), db.Connect(t)
	first, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.LockKeys(t.Context(), first, "a", `b"\`, "a", "", "c"); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, "select count(*)::int "+advisory+" and granted"); n != 3 {
		t.Errorf("%d locks are held for 3 keys", n)
	}
	second, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.LockKeys(t.Context(), second, "d", ""); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- outbox.LockKeys(t.Context(), second, `b"\`) }()
	pgtest.AwaitSQL(t, db, "select count(*) = $1 "+advisory+" and not granted", 1)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := second.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLockKeysNeedsAFreshSnapshot: in REPEATABLE READ what is read under the lock is what stood before it.
func TestLockKeysNeedsAFreshSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	conn, sqlDB := db.Connect(t), openSQL(t, db.URL)
	for level, refused := range map[pgx.TxIsoLevel]bool{
		pgx.ReadCommitted: false, pgx.RepeatableRead: true,
		pgx.Serializable: false,
	} {
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		err = outbox.LockKeys(t.Context(), tx, "acc-1")
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "begin it with READ COMMITTED") {
			t.Errorf("%s: %v", level, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := sqlDB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.LockKeysSQL(t.Context(), tx, "acc-1"); err == nil ||
		!strings.Contains(err.Error(), "begin it with READ COMMITTED") {
		t.Errorf("database/sql: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// The documentation gives plain SQL producers the expression of the lock.
func TestLockKeysIsTheDocumentedLock(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	tx, err := openSQL(t, db.URL).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.LockKeysSQL(t.Context(), tx, "acc-1"); err != nil {
		t.Fatal(err)
	}
	if pgtest.One[bool](t, db, `select pg_try_advisory_xact_lock(hashtextextended('acc-1' collate "C", $1))`, 0) {
		t.Error("the documented lock is free while LockKeysSQL holds the key")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, db, `select pg_try_advisory_xact_lock(hashtextextended('acc-1' collate "C", $1))`, 0) {
		t.Error("the lock outlives its transaction")
	}
}

func TestLockKeysDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			keys := strings.Split("abcdefghijklmnopqrst", "")
			for range 40 {
				rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
					return outbox.LockKeys(t.Context(), tx, keys[:10]...)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestLockKeysRefusals(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	inTx(t, db.Pool, func(tx pgx.Tx) error {
		if err := outbox.LockKeys(t.Context(), tx, "a", "secret\x00"); err == nil ||
			!strings.Contains(err.Error(), "key 1") || strings.Contains(err.Error(), "secret") {
			t.Errorf("a key with NUL: %v", err)
		}
		return outbox.LockKeys(t.Context(), tx)
	})
	if outbox.LockKeys(t.Context(), nil, "a") == nil || outbox.LockKeysSQL(t.Context(), nil, "a") == nil {
		t.Error("no transaction was accepted")
	}
}
