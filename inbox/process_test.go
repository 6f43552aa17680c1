package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

func TestProcessTx(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(inbox.Config{})
	ctx := t.Context()
	inTx := func(do func(pgx.Tx)) {
		t.Helper()
		if err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error { do(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	process := func(tx pgx.Tx, e event.Event, do inbox.Effect, want inbox.Outcome, wantErr error) {
		t.Helper()
		if got, err := in.ProcessTx(ctx, tx, e, do); got != want || !errors.Is(err, wantErr) {
			t.Fatalf("got %v, %v; want %v, %v", got, err, want, wantErr)
		}
	}
	fails := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		return errors.Join(write(ctx, tx, e), errBad)
	}
	skips := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		return errors.Join(write(ctx, tx, e), inbox.Skip)
	}
	breaks := func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
		_, err := tx.Exec(ctx, "select 1/0")
		return err
	}
	events := some(5)
	events[4].ID = uuid.New()
	inTx(func(tx pgx.Tx) {
		process(tx, events[0], write, inbox.Applied, nil)
		process(tx, events[0], write, inbox.Duplicate, nil)
		process(tx, events[1], fails, inbox.Undecided, errBad)
		process(tx, events[2], skips, inbox.Skipped, nil)
		process(tx, events[3], write, inbox.Applied, nil)
		process(tx, events[4], write, inbox.Applied, nil)
		if _, err := in.ProcessTx(ctx, tx, some(1)[0], breaks); err == nil {
			t.Fatal("no error")
		}
		if _, err := in.ProcessTx(ctx, tx, some(1)[0], func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
			return tx.Commit(ctx)
		}); err == nil {
			t.Fatal("commit was allowed")
		}
		_, err := in.ProcessTx(ctx, tx, of(idAt(w.noon(40)))[0], write)
		halted(t, err, err.(*inbox.HaltError).Event.ID)
	})
	inTx(func(tx pgx.Tx) {
		process(tx, events[1], write, inbox.Applied, nil)
		process(tx, events[2], write, inbox.Duplicate, nil)
	})
	same(t, "effects", w.effects(), []uuid.UUID{events[0].ID, events[3].ID, events[4].ID, events[1].ID})
	w.Exec(t, "drop table "+w.table(1))
	inTx(func(tx pgx.Tx) { process(tx, of(idAt(w.noon(1)))[0], write, inbox.Applied, nil) })
	_ = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		process(tx, some(1)[0], write, inbox.Applied, nil)
		return errBad
	})
	if got := len(w.effects()); got != 5 {
		t.Errorf("%d effects, want 5: the caller rolled the sixth back", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for says, cfg := range map[string]inbox.Config{
		"a Window of 72h0m0s":            {Window: 3 * 24 * time.Hour},
		"a Window of 1h0m0s":             {Window: time.Hour, AllowShortWindow: true},
		"a Window of 12000h0m0s":         {Window: 500 * 24 * time.Hour},
		"Window must not be negative":    {Window: -1},
		"DaysAhead must not be negative": {DaysAhead: -1},
		"MaxAttempts must not be":        {MaxAttempts: -1},
		"CrashAttempts must not be":      {CrashAttempts: -1},
		"Backoff must not be negative":   {Backoff: -1},
		"schema":                         {Schema: `a"b`},
		"DaysAhead 61: want at most 60":  {DaysAhead: 61},
	} {
		if _, err := inbox.New(w.Pool, "ledger", cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want an error that says %q", cfg, err, says)
		}
	}
	for _, consumer := range []string{"", "a\x00b", "\xff", string(make([]byte, 256))} {
		if _, err := inbox.New(w.Pool, consumer, inbox.Config{}); err == nil {
			t.Errorf("consumer %q was accepted", consumer)
		}
	}
	if _, err := inbox.New(nil, "ledger", inbox.Config{}); err == nil {
		t.Error("no pool was accepted")
	}
	if in, err := inbox.New(w.Pool, "ledger", inbox.Config{}); err != nil || in.Consumer() != "ledger" {
		t.Error(in, err)
	}
}

// TestProcessTxInAnEffect: the effects of a batch share its transaction, until one sets something within ProcessTx.
func TestProcessTxInAnEffect(t *testing.T) {
	t.Parallel()
	w, transactions := newWorld(t), 0
	lines := newInbox(t, w.Pool, "lines", small(inbox.Config{}))
	set := uuid.Nil
	h := w.inbox(inbox.Config{Observer: inbox.Observer{Handled: func(inbox.HandledInfo) { transactions++ }}}).Each(
		func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			var tenant string
			err := tx.QueryRow(ctx, "select coalesce(current_setting('app.tenant', true), '')").Scan(&tenant)
			if err != nil || tenant != "" {
				return fmt.Errorf("tenant %q: %w", tenant, err)
			}
			_, err = lines.ProcessTx(ctx, tx, e, func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID == set {
					if _, err := tx.Exec(ctx, "set local app.tenant = 'a'"); err != nil {
						return err
					}
				}
				return write(ctx, tx, e)
			})
			return err
		})
	same(t, "outcomes", handle(t, h, some(9)), repeat(inbox.Applied, 9))
	if transactions != 1 {
		t.Errorf("%d transactions", transactions)
	}
	events := some(9)
	set = events[4].ID
	same(t, "with a setting", handle(t, h, events), repeat(inbox.Applied, 9))
	if transactions != 10 {
		t.Errorf("%d transactions", transactions)
	}
}
