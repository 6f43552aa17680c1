package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// kept checks that rows were not deleted, and that the error says why and how to delete them all the same.
func kept(t *testing.T, sql string, err error) {
	t.Helper()
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "23001" || !strings.Contains(pg.Message, "which events were applied") ||
		!strings.Contains(pg.Hint, "inbox maintain") || !strings.Contains(pg.Hint, "effectonce.inbox = 'forget'") {
		t.Errorf("%s: %v", sql, err)
	}
}

// TestP9_7_RowsAreKept: rows that tell what was applied are not deleted by hand, unless on purpose.
func TestP9_7_RowsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events, log := append(some(2), of(uuid.New())...), numbered(1, 3)
	h := w.halting(inbox.Config{}).Each(write)
	same(t, "by id", handle(t, h, events), repeat(inbox.Applied, 3))
	in, err := inbox.New(w.Pool, "numbers", inbox.Config{Dedup: inbox.ByWatermark})
	if err != nil {
		t.Fatal(err)
	}
	numbers := in.Each(write)
	same(t, "by number", handle(t, numbers, log), repeat(inbox.Applied, 3))
	w.Exec(t, "select inbox_make_day('2999-01-02')")
	jobs := []string{
		"delete from inbox_message where processed_at < clock_timestamp()", "truncate effect, inbox_message",
		"delete from inbox_watermark where moved_at < clock_timestamp()",
		"create table mine (); savepoint s; delete from inbox_message_any",
	}
	for _, table := range append(w.partitions(), "inbox_message", "inbox_message_any", "inbox_watermark") {
		jobs = append(jobs, "truncate "+table)
		if pgtest.One[bool](t, w.DB, "select exists (select from "+table+")") {
			jobs = append(jobs, "delete from "+table)
		}
	}
	do := func(sql string) error {
		tx, err := w.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		_, err = tx.Exec(t.Context(), sql)
		return err
	}
	for _, sql := range jobs {
		kept(t, sql, do(sql))
		kept(t, sql, do("set local effectonce.inbox = 'open'; "+sql))
		for _, purpose := range []string{"effectonce.inbox = 'forget'", "session_replication_role = replica"} {
			if err := do("set local " + purpose + "; " + sql); err != nil {
				t.Errorf("%s: %s: %v", purpose, sql, err)
			}
		}
	}
	// As the inbox takes back what it inserted in a savepoint.
	if err := do("savepoint a; insert into inbox_message_any (consumer_name, message_id) values ('c', " +
		"gen_random_uuid()); release a; savepoint b; delete from inbox_message_any where consumer_name = " +
		"'c'"); err != nil {
		t.Error(err)
	}
	_, err = w.halting(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
		_, err := tx.Exec(ctx, "delete from inbox_message")
		return err
	}).Handle(t.Context(), some(1))
	kept(t, "an effect", err)
	same(t, "ids again", handle(t, h, events), repeat(inbox.Duplicate, 3))
	same(t, "numbers again", handle(t, numbers, log), repeat(inbox.Duplicate, 3))
}
