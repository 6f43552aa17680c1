package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

// deed is something that an effect does with its transaction, or with what it was given.
type deed struct {
	do     func(ctx context.Context, tx pgx.Tx, e event.Event, d *doer) error
	parked bool // the event cannot be applied
}

// doer is the effect of the event that does a deed.
type doer struct {
	runs      int
	next      chan struct{} // closed when the effect of another event begins
	nextOnce  sync.Once
	left      chan struct{} // closed when the goroutine that the effect left behind has ended; nil: it left none
	lateWrite error
}

// exec is a deed of one statement.
func exec(sql string) deed {
	return deed{do: func(ctx context.Context, tx pgx.Tx, _ event.Event, _ *doer) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}}
}

// once is a deed that ends the first run of its effect.
func once(do func() error) deed {
	return deed{do: func(_ context.Context, _ pgx.Tx, _ event.Event, d *doer) error {
		if d.runs == 1 {
			return do()
		}
		return nil
	}}
}

// below is a deed that runs SQL on the connection, where nothing looks at its text.
func below(sql string) deed {
	return deed{func(ctx context.Context, tx pgx.Tx, _ event.Event, _ *doer) error {
		_, err := tx.Conn().Exec(ctx, sql)
		return err
	}, true}
}

// deeds are those of each class of statement that changes more than rows, and of what Go lets an effect do.
var deeds = map[string]deed{
	"set local":                 exec("set local app.tenant = 'a'"),
	"set_config":                exec("select set_config('app.tenant', 'a', true)"),
	"set_config of the session": exec("select set_config('app.tenant', 'a', false)"),
	"update of the settings":    exec("update pg_settings set setting = '59min' where name = 'statement_timeout'"),
	"set":                       exec("set app.tenant = 'a'"),
	"set in a block":            exec("do $$ begin set local role pg_read_all_data; end $$"),
	"start read only":           exec("start transaction read only"),
	"set local role":            exec("set local role pg_read_all_data"),
	"set role":                  exec("set role pg_read_all_data"),
	"set local search_path":     exec("set local search_path = pg_catalog"),
	"set search_path":           exec("set search_path = pg_catalog"),
	"read only":                 exec("set transaction read only"),
	"set local statement":       exec("set local statement_timeout = '1h'"),
	"set constraints":           exec("set constraints all deferred"),
	"among others":              exec("select 1; set local app.tenant = 'a'; select ';'"),
	"advisory lock":             exec("select pg_advisory_lock(42)"),
	"temporary table":           exec("create temporary table scratch (a int)"),
	"temporary table, dropped":  exec("create temp table scratch (a int) on commit drop"),
	"temporary table, local":    exec("create local temp table scratch (a int)"),
	"temporary table, selected": exec("select 1 as a into temp scratch"),
	"temporary view":            exec("create or replace temp view scratch as select 1 as a"),
	"schema of the session":     exec("create table pg_temp.scratch (a int)"),
	"deallocate":                exec("deallocate all"),
	"cursor":                    exec("declare c cursor for select 1"),
	"cursor with hold":          exec("declare c cursor with hold for select 1"),
	"prepared statement":        exec("prepare p as select 1"),
	"listen":                    exec("listen somewhere"),
	"savepoint":                 exec("savepoint a"),
	"discard":                   exec("reset all"),
	"commit and begin":          {exec("insert into effect (id) values (gen_random_uuid()); commit; begin").do, true},
	"commit below":              below("insert into effect (id) values (gen_random_uuid()); commit"),
	"commit and begin below":    below("insert into effect (id) values (gen_random_uuid()); commit; begin"),
	"a transaction below": {func(ctx context.Context, tx pgx.Tx, e event.Event, _ *doer) error {
		return pgx.BeginFunc(ctx, tx.Conn(), func(tx pgx.Tx) error { return write(ctx, tx, e) })
	}, true},
	"constraints at once":       {exec("set constraints all immediate").do, true},
	"constraints at once below": below("set constraints all immediate; commit; begin"),
	"constraints by name": exec("create table strict (a int unique deferrable initially deferred); " +
		"insert into strict values (1); set constraints strict_a_key immediate"),
	"commit in a dollar comment": exec("do $$ begin perform 1; /* commit; */ end $$"),
	"pgx savepoint": {do: func(ctx context.Context, tx pgx.Tx, _ event.Event, _ *doer) error {
		_, err := tx.Begin(ctx)
		return err
	}},
	"goroutine left behind": {do: func(ctx context.Context, tx pgx.Tx, _ event.Event, d *doer) error {
		left := make(chan struct{})
		d.left = left
		go func() {
			defer close(left)
			select {
			case <-d.next:
				ctx = context.WithoutCancel(ctx)
				_, d.lateWrite = tx.Exec(ctx, "insert into effect (id) values (gen_random_uuid())")
			case <-ctx.Done():
			}
		}()
		return nil
	}},
	"works in place": {do: func(_ context.Context, _ pgx.Tx, e event.Event, d *doer) error {
		if string(e.Payload) != "{}" || e.Headers["hops"] != "0" {
			return outcome.Terminal("changed", fmt.Errorf("run %d was given %s and %v", d.runs, e.Payload, e.Headers))
		}
		clear(e.Payload)
		e.Headers["hops"] = "1"
		if d.runs < 3 {
			return errBad
		}
		return nil
	}},
	"error":  once(func() error { return errBad }),
	"goexit": once(func() error { runtime.Goexit(); return nil }),
	"panic":  once(func() error { panic("once") }),
}

const surroundings = `select coalesce(current_setting('app.tenant', true), '') || current_user || current_setting('search_path')
	|| current_setting('transaction_read_only') || current_setting('statement_timeout')
	|| (select count(*) from pg_class where relname = 'scratch' and pg_table_is_visible(oid))
	|| (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())`

// TestP9_2_NeighboursSeeNothing: whatever an effect does with its transaction, what is committed is what a run of each
// event alone commits, the effects of other events find the same surroundings, and so does the next user of the pool.
func TestP9_2_NeighboursSeeNothing(t *testing.T) {
	t.Parallel()
	const n = 7
	for name, what := range deeds {
		for _, at := range []int{0, 3, n - 1} {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				d := &doer{next: make(chan struct{})}
				events := some(n)
				for i := range events {
					events[i].Key, events[i].Headers = fmt.Sprint(i), map[string]string{"hops": "0"}
					events[i].Position.Offset++
				}
				var outside, inside string
				if err := w.Pool.QueryRow(t.Context(), surroundings).Scan(&outside); err != nil {
					t.Fatal(err)
				}
				in := w.inbox(inbox.Config{MaxAttempts: 4})
				h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
					if e.ID == events[at].ID {
						d.runs++
						if err := write(ctx, tx, e); err != nil {
							return err
						}
						return what.do(ctx, tx, e, d)
					}
					if inside != "" && d.left != nil && d.lateWrite == nil {
						d.nextOnce.Do(func() { close(d.next) })
						<-d.left
					}
					var around string
					if err := tx.QueryRow(ctx, surroundings).Scan(&around); err != nil {
						return err
					}
					if inside == "" {
						inside = around
					}
					if around != inside {
						t.Errorf("an effect ran in %s, another in %s", around, inside)
					}
					return write(ctx, tx, e)
				})
				handle(t, h, some(1)) // what an effect usually sees
				w.Exec(t, "delete from effect")
				want := repeat(inbox.Applied, n)
				if what.parked {
					want[at] = inbox.Parked
				}
				same(t, "outcomes", handle(t, h, events), want)
				same(t, "again", handle(t, h, events), repeat(inbox.Duplicate, n))
				applied := ids(events)
				if what.parked {
					applied = append(applied[:at:at], applied[at+1:]...)
				}
				same(t, "effects", w.effects(), applied)
				if d.left != nil && at < n-1 && d.lateWrite == nil {
					t.Error("a goroutine that an effect left behind wrote into its neighbour's run")
				}
				for range 2 * w.Pool.Config().MaxConns {
					var around string
					if err := w.Pool.QueryRow(t.Context(), surroundings).Scan(&around); err != nil {
						t.Fatal(err)
					}
					if around != outside {
						t.Fatalf("a connection of the pool is in %s, before in %s", around, outside)
					}
				}
			})
		}
	}
}

// Two handlers of one Inbox for one topic: of each event only one effect would run. The second one says so.
func TestTwoHandlersForATopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(inbox.Config{})
	first, second := in.Each(write), in.Each(write)
	events := some(2)
	same(t, "first", handle(t, first, events), repeat(inbox.Applied, 2))
	if _, err := second.Handle(t.Context(), events); err == nil || !strings.Contains(err.Error(), "two handlers") {
		t.Errorf("%v", err)
	}
	first.Revoked(t.Context(), "payments", 3)
	same(t, "after the first has given up", handle(t, second, events), repeat(inbox.Duplicate, 2))
}

// An effect's statement fails with an outage's code, for ever, while the database answers others: the event is parked,
// and those of other keys are applied.
func TestP9_4_OutageOfOneStatement(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"08P01", "08006", "53100", "53200", "53400", "57P03", "25006"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			events := some(4)
			for i := range events {
				events[i].Key = fmt.Sprint(i)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stops := 0
			in := w.inbox(inbox.Config{MaxAttempts: 2, Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
				if r.Reason == "away" || r.Reason == "rejected" {
					stops++
				}
				if stops > 5 {
					cancel() // it would go on for ever
				}
			}}})
			h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID == events[2].ID {
					_, err := tx.Exec(ctx, "do $$ begin raise exception 'no' using errcode = '"+code+"'; end $$")
					return err
				}
				return write(ctx, tx, e)
			})
			want := repeat(inbox.Applied, 4)
			want[2] = inbox.Parked
			out, err := h.Handle(ctx, events)
			if err != nil {
				t.Fatalf("%v after %d stops", err, stops)
			}
			same(t, "outcomes", out, want)
		})
	}
}

// endsAtCommit makes a table whose rows end the session that commits them.
func (w *world) endsAtCommit(t *testing.T) {
	t.Helper()
	w.Exec(t, `create table ending (id uuid);
		create function ending() returns trigger language plpgsql as $$ begin
			perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60); return null; end $$;
		create constraint trigger ending after insert on ending deferrable initially deferred for each row
			execute function ending()`)
}

// A session ends at the COMMIT of one event, for ever, while the database answers others: the event is parked, and
// those of other keys are applied.
func TestP9_4_SessionEndsAtCommit(t *testing.T) {
	t.Parallel()
	w, events := newWorld(t), keyed("a", "b", "c", "d")
	w.endsAtCommit(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := 0
	in := w.inbox(inbox.Config{MaxAttempts: 2, Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
		if r.Reason == "commit unknown" {
			ends++
		}
		if ends > 6 {
			cancel() // it would go on for ever
		}
	}}})
	out, err := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.ID == events[2].ID {
			if _, err := tx.Exec(ctx, "insert into ending values ($1)", e.ID.String()); err != nil {
				return err
			}
		}
		return write(ctx, tx, e)
	}).Handle(ctx, events)
	if err != nil {
		t.Error(err)
	}
	want := repeat(inbox.Applied, 4)
	want[2] = inbox.Parked
	same(t, "outcomes", out, want)
	same(t, "effects", w.effects(), ids(append(events[:2:2], events[3])))
}
