package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// LockKeys locks keys until tx ends; other transactions that lock one of them wait. Use it for events whose key has no
// row that the transaction locks anyway: without a lock, two transactions may append in one order and commit in the
// other, and consumers see the key's events in an order that never existed.
//
// Call it once, with all keys, before reading what the decision depends on: it locks them in an order without
// deadlocks, in one round trip. It ignores empty keys, which have no order. Two keys may share a lock (a 64-bit hash),
// which only costs a wait. Each key takes a place in the server's lock table (max_locks_per_transaction): lock
// hundreds, not hundreds of thousands.
//
// It refuses a REPEATABLE READ transaction: its snapshot is older than the locks, and does not show what their earlier
// holders have written. In SERIALIZABLE, Postgres itself refuses such a decision if the other transaction is
// SERIALIZABLE too.
//
// An error that is not about a key comes from the database, and tx must be rolled back. From plain SQL, lock one key by
// select pg_advisory_xact_lock(hashtextextended('acc-1' collate "C", 0)), several in the order of these hashes.
func LockKeys(ctx context.Context, tx pgx.Tx, keys ...string) error {
	if tx == nil {
		return errors.New("outbox: tx is nil: lock within the transaction of the business change")
	}
	return lockKeys(keys, func(query, arg string) error {
		_, err := tx.Exec(ctx, query, arg)
		return err
	})
}

// LockKeysSQL is [LockKeys] for database/sql.
func LockKeysSQL(ctx context.Context, tx SQLTx, keys ...string) error {
	if tx == nil {
		return errors.New("outbox: tx is nil: lock within the transaction of the business change")
	}
	return lockKeys(keys, func(query, arg string) error {
		_, err := tx.ExecContext(ctx, query, arg)
		return err
	})
}

func lockKeys(keys []string, exec func(query, arg string) error) error {
	list := newArray(len(keys) * 16)
	for i, key := range keys {
		if !event.Storable(key) {
			return fmt.Errorf("outbox: lock keys: key %d is not valid UTF-8 without U+0000", i)
		}
		if key != "" {
			list.text(key)
		}
	}
	arg := list.String()
	if arg == "{}" {
		return nil
	}
	err := exec(queryLockKeys, arg)
	var state interface{ SQLState() string }
	switch {
	case errors.As(err, &state) && state.SQLState() == "22012": // division_by_zero
		return fmt.Errorf("outbox: lock keys: the transaction is REPEATABLE READ and goes on seeing what there was "+
			"before it had the locks: "+
			"begin it with READ COMMITTED: %w", err)
	case err != nil:
		return fmt.Errorf("outbox: lock %d keys: %w", len(keys), err)
	}
	return nil
}
