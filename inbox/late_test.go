package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// TestTransactionEndsWithEffect: a goroutine that outlives its effect cannot use the transaction any more. It would
// write in another event's transaction, or in none.
func TestTransactionEndsWithEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var outer, inner pgx.Tx
	leak := func(ctx context.Context, tx pgx.Tx, e event.Event) (err error) {
		outer = tx
		if inner, err = tx.Begin(ctx); err != nil {
			return err
		}
		return write(ctx, inner, e)
	}
	const late = "insert into effect (id) values (gen_random_uuid())"
	for name, run := range map[string]func() error{
		"each": func() error { _, err := w.inbox(inbox.Config{}).Each(leak).Handle(t.Context(), some(1)); return err },
		"batch": func() error {
			_, err := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				return leak(ctx, tx, events[0])
			}).Handle(t.Context(), some(1))
			return err
		},
		"in the caller's transaction": func() error {
			return pgx.BeginFunc(t.Context(), w.DB.Pool, func(tx pgx.Tx) error {
				_, err := w.inbox(inbox.Config{}).ProcessTx(t.Context(), tx, some(1)[0], leak)
				return err
			})
		},
	} {
		if err := run(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for what, tx := range map[string]pgx.Tx{"transaction": outer, "savepoint": inner} {
			for use, err := range uses(t.Context(), tx, late) {
				if !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s: %s of the %s: %v", name, use, what, err)
				}
			}
		}
	}
	if n := len(w.effects()); n != 3 {
		t.Errorf("%d effects, want 3", n)
	}
}

// uses returns the error of each way to use a transaction.
func uses(ctx context.Context, tx pgx.Tx, sql string) map[string]error {
	all := map[string]error{"Commit": tx.Commit(ctx), "Rollback": tx.Rollback(ctx)}
	_, all["Begin"] = tx.Begin(ctx)
	_, all["Exec"] = tx.Exec(ctx, sql)
	_, all["Prepare"] = tx.Prepare(ctx, "late", sql)
	_, all["CopyFrom"] = tx.CopyFrom(ctx, pgx.Identifier{"effect"}, []string{"id"}, pgx.CopyFromRows(nil))
	all["QueryRow"] = tx.QueryRow(ctx, sql+" returning id").Scan(nil)
	rows, err := tx.Query(ctx, sql)
	if all["Query"] = err; err == nil || rows.Next() || !errors.Is(rows.Err(), err) {
		all["Query"] = errors.Join(errors.New("rows"), err)
	}
	rows.Close()
	var b pgx.Batch
	b.Queue(sql)
	all["SendBatch"] = tx.SendBatch(ctx, &b).Close()
	res := tx.SendBatch(ctx, &b)
	_, all["SendBatch.Exec"] = res.Exec()
	_, all["SendBatch.Query"] = res.Query()
	all["SendBatch.QueryRow"] = res.QueryRow().Scan(nil)
	return all
}
