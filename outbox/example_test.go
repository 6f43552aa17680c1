package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

// The change and the event that tells about it: one commit, or neither.
func ExampleAppend() {
	withdraw := func(ctx context.Context, db *pgxpool.Pool, account string, amount int64) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			// The row's lock is what orders the account's events.
			if _, err := tx.Exec(ctx, "update account set balance = balance - $2 where id = $1", account,
				amount); err != nil {
				return err
			}
			e, err := event.NewJSON(event.Event{Topic: "accounts", Key: account, Type: "Withdrawn"},
				map[string]int64{"amount": amount})
			if err != nil {
				return err
			}
			return outbox.Append(ctx, tx, e)
		})
	}
	_ = withdraw
}

// The same in one round trip between begin and commit: the statements and the event travel together.
func ExampleQueue() {
	withdraw := func(ctx context.Context, db *pgxpool.Pool, account string, amount int64) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			e, err := event.NewJSON(event.Event{Topic: "accounts", Key: account, Type: "Withdrawn"},
				map[string]int64{"amount": amount})
			if err != nil {
				return err
			}
			var batch pgx.Batch
			batch.Queue("update account set balance = balance - $2 where id = $1", account, amount)
			if err := outbox.Queue(ctx, &batch, e); err != nil {
				return err
			}
			return tx.SendBatch(ctx, &batch).Close()
		})
	}
	_ = withdraw
}

// A reminder that is published in three days, unless it is cancelled. It takes its place in its key's order then.
func ExampleAppend_notBefore() {
	remind := func(ctx context.Context, tx pgx.Tx, invoice string) error {
		return outbox.Append(ctx, tx, event.Event{
			Topic: "reminders", Key: invoice, Type: "PaymentDue", NotBefore: time.Now().Add(3 * 24 * time.Hour),
		})
	}
	_ = remind
}

// An event that no consumer could ever get is refused before anything is sent. The transaction goes on.
func ExampleEventError() {
	tx := unused{}
	err := outbox.Append(context.Background(), tx, event.Event{Topic: "accounts", Type: "Opened"},
		event.Event{Topic: "my accounts", Type: "Opened"})
	var refused *outbox.EventError
	if errors.As(err, &refused) {
		fmt.Println(refused.Index, refused.Field)
	}
	// Output: 1 Topic
}

// unused stands for a transaction that the example never reaches.
type unused struct{ pgx.Tx }

// database/sql, and what is built on it: sqlc and sqlx hand over their transaction, bun its tx.Tx, GORM its
// tx.Statement.ConnPool.(outbox.SQLTx).
func ExampleAppender_AppendSQL() {
	appender := outbox.Appender{Source: "accounts", Schema: "app"}
	open := func(ctx context.Context, db *sql.DB, account string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if _, err := tx.ExecContext(ctx, "insert into account (id) values ($1)", account); err != nil {
			return err
		}
		if err := appender.AppendSQL(ctx, tx, event.Event{
			Topic: "accounts", Key: account,
			Type: "Opened",
		}); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = open
}

// A decision about a key that has no row of its own to lock.
func ExampleLockKeys() {
	reserve := func(ctx context.Context, db *pgxpool.Pool, seat string) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := outbox.LockKeys(ctx, tx, seat); err != nil {
				return err
			}
			var taken bool
			if err := tx.QueryRow(ctx, "select exists (select from reservation where seat = $1)", seat).Scan(
				&taken); err != nil {
				return err
			}
			typ := "SeatReserved"
			if taken {
				typ = "SeatRefused"
			} else if _, err := tx.Exec(ctx, "insert into reservation (seat) values ($1)", seat); err != nil {
				return err
			}
			return outbox.Append(ctx, tx, event.Event{Topic: "seats", Key: seat, Type: typ})
		})
	}
	_ = reserve
}
