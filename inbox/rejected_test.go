package inbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_3_StandbyAnswersForMoment: a DNS name, a pooler or a proxy leads to a standby for a while. On a standby the
// query for the primary's WAL position fails (55000), and connections to it stay open afterwards. No partition may
// halt.
func TestP9_3_StandbyAnswersForMoment(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	w := &world{server.Database(t, "inbox"), t}
	w.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null, what text not null "+
		"default '')")
	proxy := pgtest.NewProxy(t, w.URL)
	told := make(chan string, 10000)
	in := newInbox(t, pool(t, proxy.URL()), "ledger", small(inbox.Config{Observer: inbox.Observer{
		Retried: func(i inbox.RetriedInfo) { told <- i.Reason },
	}}))
	h, events := in.Each(write), some(20)
	assigned(h)
	same(t, "on the primary", handle(t, h, events[:5]), repeat(inbox.Applied, 5))
	standby := w.At(t, server.Standby(t, "")).URL
	for i, reassigned := range []bool{false, true} {
		proxy.To(t, standby)
		proxy.CutAll()
		if reassigned {
			assigned(h)
		}
		next := events[5+5*i : 10+5*i]
		decided := make(chan error, 1)
		go func() {
			out, err := h.Handle(t.Context(), next)
			if err == nil {
				same(t, "on the primary again", out, repeat(inbox.Applied, 5))
			}
			decided <- err
		}()
		for away := 0; away < 3; {
			select {
			case reason := <-told:
				if away++; reason != "away" {
					t.Errorf("on a standby: %s", reason)
				}
			case err := <-decided:
				t.Fatalf("on a standby, assigned again %v: %v", reassigned, err)
			}
		}
		proxy.To(t, w.URL) // the connections to the standby stay
		if err := <-decided; err != nil {
			t.Error(err)
		}
	}
	same(t, "effects", w.effects(), ids(events[:15]))
}

// TestP9_3_RejectedForAWhile: the database rejects the inbox's statements until it is repaired. Meanwhile the partition
// is recorded as halted. It goes on by itself, and an operator may resume it.
func TestP9_3_RejectedForAWhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	told := make(chan inbox.RetriedInfo, 10000)
	in := w.inbox(inbox.Config{Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }}})
	h, events := in.Each(write), some(15)
	assigned(h)
	same(t, "before", handle(t, h, events[:5]), repeat(inbox.Applied, 5))
	halts := func() int {
		return pgtest.One[int](t, w.DB, "select count(*) from inbox_progress where halted_at is not null and "+
			"halted_code = 'rejected'")
	}
	for i, repair := range []func(){
		func() {},
		func() { // an operator resumes it as well
			if err := w.operator().Resume(t.Context(), "payments", 3, "the table is back"); err != nil {
				t.Error(err)
			}
		},
	} {
		w.Exec(t, "alter table inbox_parked rename to inbox_parked_away")
		decided := make(chan error, 1)
		go func() {
			_, err := h.Handle(t.Context(), events[5+5*i:10+5*i])
			decided <- err
		}()
		for noted := false; !noted; {
			select {
			case r := <-told:
				if r.Reason != "rejected" {
					t.Errorf("retried as %s: %v", r.Reason, r.Err)
				}
				noted = r.Attempt >= 10
			case err := <-decided:
				t.Fatalf("without a table: %v", err)
			}
		}
		if halts() != 1 {
			t.Errorf("%d partitions are recorded as halted, want 1", halts())
		}
		w.Exec(t, "alter table inbox_parked_away rename to inbox_parked")
		repair()
		if err := <-decided; err != nil {
			t.Error(err)
		}
		if halts() != 0 {
			t.Error("the partition goes on and is still recorded as halted")
		}
	}
	same(t, "effects", w.effects(), ids(events))
}

// TestP9_3_HiddenRowsDecideNothing: row-level security is enabled on a table of the inbox, so the worker's role may see
// none of its rows, or some. Events would pass a parked key. Nothing is decided until it is off, and operators' lists
// fail.
func TestP9_3_HiddenRowsDecideNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app, role := w.worker()
	w.grants(role)
	w.Exec(t, "grant select, insert, delete on inbox_watermark to "+role)
	w.Exec(t, "grant select on inbox_numbering to "+role)
	told := make(chan inbox.RetriedInfo, 10000)
	in := newInbox(t, app, "ledger", small(inbox.Config{
		Schema: w.Schema, MaintenanceDB: w.Pool,
		Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }},
	}))
	h := in.Each(write)
	same(t, "before", handle(t, h, some(2)), repeat(inbox.Applied, 2))
	rows, err := w.Pool.Query(t.Context(), `select relname from pg_class where relnamespace = $1::regnamespace
		and relname like 'inbox%' and relkind in ('r', 'p') and not relispartition and relname <> 'inbox_audit'`,
		w.Schema)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 9 {
		t.Fatal(tables, err)
	}
	o, err := operator.New(app, w.Schema, "", "kim")
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() error { _, err := o.Consumers(t.Context()); return err }
	parked := func() error { _, err := o.Parked(t.Context(), admin.ParkedFilter{}); return err }
	lists := map[string]func() error{
		"inbox_consumer": consumers, "inbox_progress": consumers, "inbox_parked": parked, "inbox_parked_key": parked,
	}
	for _, table := range tables {
		w.Exec(t, "alter table "+table+" enable row level security")
		diagnosis, err := operator.Diagnose(t.Context(), app, w.Schema, false)
		missing := "table " + table + ": bypassrls, as row-level security is enabled"
		if err != nil || !slices.Contains(diagnosis.MissingRights, missing) {
			t.Errorf("%s: the diagnosis says %v, %v", table, diagnosis.MissingRights, err)
		}
		if list := lists[table]; list != nil {
			if err := list(); err == nil || !strings.Contains(err.Error(), `"`+table+`"`) {
				t.Errorf("a list with hidden rows of %s: %v", table, err)
			}
		}
		decided := make(chan error, 1)
		events := some(2)
		go func() {
			_, err := h.Handle(t.Context(), events)
			decided <- err
		}()
		select {
		case r := <-told:
			if r.Reason != "rejected" || !strings.Contains(r.Err.Error(), "row-level security") ||
				!strings.Contains(r.Err.Error(), table) {
				t.Errorf("%s: retried as %s: %v", table, r.Reason, r.Err)
			}
		case err := <-decided:
			t.Fatalf("with hidden rows of %s: %v", table, err)
		}
		w.Exec(t, "alter table "+table+" disable row level security")
		if err := <-decided; err != nil {
			t.Error(err)
		}
		for len(told) > 0 {
			<-told
		}
	}
}

// TestP9_3_AnotherDatabaseDecidesNothing: a standby was promoted, and connections lead to it. It may lack transactions
// whose offsets are committed, so a partition that was assigned with the old primary commits nothing on the new one,
// and moves no progress there, whether its runs are counted or not.
func TestP9_3_AnotherDatabaseDecidesNothing(t *testing.T) {
	t.Parallel()
	for name, parallel := range map[string]int{"counted": 0, "not counted": 0, "in parts": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counted := name == "counted"
			server := pgtest.NewServer(t)
			w := &world{server.Database(t, "inbox"), t}
			w.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null, "+
				"what text not null default '')")
			proxy := pgtest.NewProxy(t, w.URL)
			cfg := small(inbox.Config{Parallel: parallel})
			h, events := newInbox(t, pool(t, proxy.URL()), "ledger", cfg).Each(write), keyed("a", "b", "c", "d", "e",
				"a", "b", "c", "d", "e")
			if counted { // an earlier process ended within this range
				w.Exec(t, "insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset) "+
					"values ('ledger', $1, $2, 0, 10)", events[0].Topic, events[0].Position.Partition)
			}
			assigned(h)
			same(t, "on the primary", handle(t, h, events[:5]), repeat(inbox.Applied, 5)) // later ones write no range
			const progress = "select from_offset from inbox_progress"
			before := pgtest.One[int](t, w.DB, progress)
			standby := server.Standby(t, "")
			standby.Promote(t)
			promoted := w.At(t, standby)
			proxy.To(t, promoted.URL)
			proxy.CutAll()
			out, err := h.Handle(t.Context(), events[6:])
			if _, ok := errors.AsType[*inbox.DatabaseChangedError](err); !ok {
				t.Errorf("outcomes %v, error %v, want a DatabaseChangedError", out, err)
			}
			if n := pgtest.One[int](t, promoted, "select count(*) from effect"); n > 5 {
				t.Errorf("%d effects were committed in the other database", n-5)
			}
			if now := pgtest.One[int](t, promoted, progress); now > before {
				t.Errorf("the progress of the other database moved from %d to %d", before, now)
			}
		})
	}
}

// TestP9_3_TakenRowsDecideNothing: a trigger takes the rows away that a worker writes, as one does that was made for
// AFTER INSERT and returns null. No event is a duplicate, parked or quarantined by it, until it is gone.
func TestP9_3_TakenRowsDecideNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		table  string
		events func(bad map[uuid.UUID]error, e []event.Event)
		want   inbox.Outcome
	}{
		"new":                {"inbox_message", func(map[uuid.UUID]error, []event.Event) {}, inbox.Applied},
		"taken for new ones": {"inbox_message", func(map[uuid.UUID]error, []event.Event) {}, inbox.Applied},
		"no v7": {"inbox_message_any", func(_ map[uuid.UUID]error, e []event.Event) {
			e[0].ID, e[1].ID = uuid.New(), uuid.New()
		}, inbox.Applied},
		"failing": {"inbox_parked", func(bad map[uuid.UUID]error, e []event.Event) {
			for i := range e {
				e[i].Key, bad[e[i].ID] = e[i].ID.String(), outcome.Terminal("x", errBad)
			}
		}, inbox.Parked},
		"behind": {"inbox_parked", func(_ map[uuid.UUID]error, e []event.Event) {
			e[0].Key, e[1].Key = "parked", "parked"
		}, inbox.Parked},
		"of the future": {"inbox_parked", func(_ map[uuid.UUID]error, e []event.Event) {
			for i := range e {
				e[i].ID = event.IDAt(time.Now().Add(1000 * time.Hour))
			}
		}, inbox.Quarantined},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			bad, first, e := map[uuid.UUID]error{}, keyed("parked"), some(3)[1:]
			if name == "taken for new ones" {
				e = some(13)[1:]
			}
			bad[first[0].ID] = outcome.Terminal("x", errBad)
			told := make(chan inbox.RetriedInfo, 10000)
			h := w.inbox(inbox.Config{Observer: inbox.Observer{
				Retried: func(i inbox.RetriedInfo) { told <- i },
			}}).Each(failing(bad))
			same(t, "before", handle(t, h, first), repeat(inbox.Parked, 1))
			c.events(bad, e)
			w.Exec(t, "create function take() returns trigger language plpgsql as 'begin return null; end'")
			w.Exec(t, "create trigger take before insert on "+c.table+" for each row execute function take()")
			decided := make(chan []inbox.Outcome, 1)
			go func() {
				out, err := h.Handle(t.Context(), e)
				if err != nil {
					t.Error(err)
				}
				decided <- out
			}()
			select {
			case r := <-told:
				if r.Reason != "rejected" || !strings.Contains(r.Err.Error(), "BEFORE INSERT") {
					t.Errorf("retried as %s: %v", r.Reason, r.Err)
				}
			case out := <-decided:
				t.Fatalf("with a trigger on %s: %v", c.table, out)
			}
			w.Exec(t, "drop trigger take on "+c.table)
			same(t, "without it", <-decided, repeat(c.want, len(e)))
		})
	}
}

// TestP9_8_TakenMarksDecideNothing: the same for the marks of a consumer by numbers, the first and later ones.
func TestP9_8_TakenMarksDecideNothing(t *testing.T) {
	t.Parallel()
	for before := range 2 {
		w := newWorld(t)
		told := make(chan inbox.RetriedInfo, 10000)
		h := w.byWatermark(inbox.Config{Observer: inbox.Observer{
			Retried: func(i inbox.RetriedInfo) { told <- i },
		}}).Each(write)
		e := numbered(1, before+2)
		same(t, "before", handle(t, h, e[:before]), repeat(inbox.Applied, before))
		w.Exec(t, "create function take() returns trigger language plpgsql as 'begin return null; end'")
		w.Exec(t, "create trigger take before insert on inbox_watermark for each row execute function take()")
		decided := make(chan []inbox.Outcome, 1)
		go func() {
			out, err := h.Handle(t.Context(), e[before:])
			if err != nil {
				t.Error(err)
			}
			decided <- out
		}()
		if r := <-told; r.Reason != "rejected" || !strings.Contains(r.Err.Error(), "BEFORE INSERT") {
			t.Errorf("retried as %s: %v", r.Reason, r.Err)
		}
		w.Exec(t, "drop trigger take on inbox_watermark")
		same(t, "without it", <-decided, repeat(inbox.Applied, 2))
	}
}

// TestTakenIDIsNotReleased: the same for released events, and in a transaction of the caller.
func TestTakenIDIsNotReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, bad := keyed("a", "a"), map[uuid.UUID]error{}
	bad[e[0].ID] = outcome.Terminal("x", errBad)
	in := w.inbox(quick(inbox.Config{}))
	same(t, "before", handle(t, in.Each(failing(bad)), e), repeat(inbox.Parked, 2))
	delete(bad, e[0].ID)
	w.Exec(t, "create function take() returns trigger language plpgsql as 'begin return null; end'")
	w.Exec(t, "create trigger take before insert on inbox_message for each row execute function take()")
	err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
		outcome, err := in.ProcessTx(t.Context(), tx, keyed("b")[0], write)
		if err == nil {
			t.Errorf("in a transaction: %v", outcome)
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "BEFORE INSERT") {
		t.Error(err)
	}
	w.releaseKey("a", 2)
	if err := inbox.ReleaseOnce(t.Context(), in); err != nil {
		t.Error(err)
	}
	if n := len(w.parked()); n != 2 {
		t.Errorf("%d events are left, want 2", n)
	}
	w.Exec(t, "drop trigger take on inbox_message")
	if err := inbox.ReleaseOnce(t.Context(), in); err != nil {
		t.Error(err)
	}
	if len(w.effects()) != 2 || len(w.parked()) != 0 {
		t.Errorf("%d effects, %v", len(w.effects()), w.parked())
	}
}

// TestP9_3_MissingKeysDecideNothing: half a restore has left a table without its primary key, so nothing would refuse
// an id a second time. Nothing is decided until the key is there again.
func TestP9_3_MissingKeysDecideNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dedup   inbox.Dedup
		foreign bool
		n       int
	}{
		"inbox_message": {inbox.ByID, false, 10}, "inbox_message_any": {inbox.ByID, true, 10},
		"inbox_message for one": {inbox.ByID, false, 1}, "inbox_message_any for one": {inbox.ByID, true, 1},
		"inbox_watermark": {inbox.ByOffset, false, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			table, _, _ := strings.Cut(name, " ")
			told := make(chan inbox.RetriedInfo, 10000)
			h := w.inbox(inbox.Config{
				Dedup: c.dedup, Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }},
			}).Each(write)
			e, known := some(c.n), (c.n+1)/2
			if c.foreign {
				for i := range e {
					e[i].ID = uuid.New()
				}
			}
			if table != "inbox_watermark" { // of which only the first insert may meet another
				same(t, "before", handle(t, h, e[:known]), repeat(inbox.Applied, known))
			}
			key := pgtest.One[string](t, w.DB, "select pg_get_constraintdef(oid) from pg_constraint "+
				"where conrelid = '"+table+"'::regclass and contype = 'p'")
			w.Exec(t, "alter table "+table+" drop constraint "+table+"_pkey")
			decided := make(chan []inbox.Outcome, 1)
			go func() { decided <- handle(t, h, e) }()
			select {
			case r := <-told:
				if r.Reason != "rejected" || !strings.Contains(r.Err.Error(), "lacks its primary key") {
					t.Errorf("retried as %s: %v", r.Reason, r.Err)
				}
			case out := <-decided:
				t.Fatalf("without a key: %v", out)
			}
			w.Exec(t, "alter table "+table+" add constraint "+table+"_pkey "+key)
			if out := <-decided; table != "inbox_watermark" {
				same(t, "after", out, append(repeat(inbox.Duplicate, known), repeat(inbox.Applied, c.n-known)...))
			}
			same(t, "effects", w.effects(), ids(e))
		})
	}
}
