package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Retire says that a consumer is gone: from now on days are dropped by the windows of the others. Stop its workers
// first. It keeps its floor, its account and what it has parked, so that it may come back under its name: it still
// knows what it applied, and what is older than the days that are left is quarantined. It fails when the account has
// moved within the last minute.
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

// SkipTo gives up what a partition holds between the account of the inbox and an offset: a record that halts it and can
// be neither decided nor parked. It moves the account alone, and returns where that was. The group's offset is Kafka's:
// stop the workers first, and set it to the same offset before they start again. A group's offset that is moved without
// the account goes back to it. It fails when nothing of the partition was decided yet, or more than that offset.
func (o *Operator) SkipTo(ctx context.Context, topic string, partition int32, offset int64, reason string) (from int64, err error) {
	const action = "skip records"
	err = o.ofOne(ctx, action, reason, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, o.sql(sqlSkipTo), o.consumer, topic, partition, offset).Scan(&from)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%s-%d has no account before offset %d: relay inbox consumers shows where it is", topic, partition, offset)
		}
		if err != nil {
			return err
		}
		return o.audit(ctx, tx, action, reason, o.consumer, "", topic, "", map[string]any{"partition": partition, "from": from, "to": offset})
	})
	return from, err
}
