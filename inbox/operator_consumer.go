package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Retire says that a consumer is gone: from now on days are dropped by the windows of the others. Stop its workers first. It keeps
// its floor, its account and what it has parked, so that it may come back under its name: it still knows what it applied, and what
// is older than the days that are left is quarantined. It fails when the account has moved within the last minute.
func (o *Operator) Retire(ctx context.Context, reason string) error {
	const action = "retire consumer"
	return o.ofOne(ctx, action, reason, func(tx pgx.Tx) error {
		var retired, runs bool
		err := tx.QueryRow(ctx, o.sql(sqlLockConsumer), o.consumer).Scan(&retired, &runs)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("consumer %q never started: relay inbox consumers lists them", o.consumer)
		case err != nil:
			return err
		case retired:
			return fmt.Errorf("consumer %q is retired already", o.consumer)
		case runs:
			return fmt.Errorf("consumer %q has decided something within the last minute: stop its workers first", o.consumer)
		}
		if _, err := tx.Exec(ctx, o.sql(sqlRetire), o.consumer); err != nil {
			return err
		}
		return o.audit(ctx, tx, action, reason, o.consumer, "", "", "", map[string]any{})
	})
}
