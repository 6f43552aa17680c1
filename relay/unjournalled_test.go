package relay_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestClaimWithoutItsEntry: a trigger of the journal takes its entries away. Nothing is published then, for nothing
// would tell the next claim that it was, and operators see why.
func TestClaimWithoutItsEntry(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"fresh lanes": 0, "known lanes": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			stop := startRelay(t, newRelay(t, db, to, config()))
			fill(t, db, before, 4)
			awaitDrained(t, db)
			db.Exec(t, `create function away() returns trigger language plpgsql as 'begin return null; end'`)
			db.Exec(t, `create trigger away before insert on outbox_claim for each row execute function away()`)
			db.Exec(t, `insert into outbox_event (topic, key, type, payload)
				select 'payments', 'k' || (g % 4), 'T', convert_to((10 + g / 4)::text, 'UTF8')
				from generate_series(0, 39) g`)
			pgtest.AwaitSQL(t, db,
				`select exists (select from relay_member where trouble like '%keep the journal entry%')`)
			if n := to.count(); n != before {
				t.Errorf("%d events were published without a journal entry", n-before)
			}
			db.Exec(t, `drop trigger away on outbox_claim`)
			awaitDrained(t, db)
			if n := to.count(); n != before+40 {
				t.Errorf("%d events were published, want %d", n, before+40)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEventsThatStay: a trigger keeps published events of one topic. That is said as it is, and they get no other
// numbers.
func TestEventsThatStay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*relay.Config){
		"deleted": func(*relay.Config) {}, "archived": func(c *relay.Config) { c.ArchiveDays = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to, said := outboxDB(t), &memory{}, &bytes.Buffer{} // read after the relay has ended
			db.Exec(t, `create function keep() returns trigger language plpgsql as
				'begin if old.topic = ''payments'' then return null; end if; return old; end'`)
			db.Exec(t, `create trigger keep before delete on outbox_event for each row execute function keep()`)
			fill(t, db, 40, 4)
			cfg := config(change)
			cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
			stop := startRelay(t, newRelay(t, db, to, cfg))
			pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%cannot be deleted%')`)
			db.Exec(t, `drop trigger keep on outbox_event`)
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			numbers := map[string]int64{}
			for _, e := range to.events() {
				if n, again := numbers[e.ID.String()]; again && n != e.Position.Seq {
					t.Fatalf("an event was published as number %d and as %d", n, e.Position.Seq)
				}
				numbers[e.ID.String()] = e.Position.Seq
			}
			if strings.Contains(said.String(), "somebody else deletes") {
				t.Error("nobody else deletes there")
			}
		})
	}
}

// TestSettleWithoutItsEntry: somebody deletes the journal while a claim is published. The events are sent again, and
// that is said.
func TestSettleWithoutItsEntry(t *testing.T) {
	t.Parallel()
	db, said := outboxDB(t), &bytes.Buffer{} // read after the relay has ended
	to := &memory{verdict: func(call int, _ event.Event) error {
		if call == 1 {
			db.Exec(t, `delete from outbox_claim`)
		}
		return nil
	}}
	fill(t, db, 40, 4)
	cfg := config()
	cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
	stop := startRelay(t, newRelay(t, db, to, cfg))
	awaitDrained(t, db)
	if dup := checkOrder(t, to.events(), 40); dup == 0 {
		t.Error("no event was published twice")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "journal entry of a claim is gone") {
		t.Errorf("nothing of it was said: %s", said)
	}
}

// TestEventsThatStayAside: a trigger keeps events of the other tables: they were held, or are released from a parked
// key's list, and are published or refused now. That is said as it is, and they get no other numbers.
func TestEventsThatStayAside(t *testing.T) {
	t.Parallel()
	const held, parked, published = "outbox_held", "outbox_parked", "published events cannot be deleted"
	for name, c := range map[string]struct {
		before error // of the events of a key
		table  string
		then   error
		days   int
		says   string
	}{
		"held":              {errAway, held, nil, 0, published},
		"held archived":     {errAway, held, nil, 1, published},
		"held parked":       {errAway, held, tooLarge.err, 0, "cannot be parked"},
		"released":          {tooLarge.err, parked, nil, 0, published},
		"released archived": {tooLarge.err, parked, nil, 1, published},
		"released held":     {tooLarge.err, parked, errAway, 0, "cannot be held"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, b := outboxDB(t), newBroker(4)
			refuse := func(err error) {
				b.set(func(e *event.Event, _ int32) answer {
					if e.Key == "k3" {
						return answer{err: err}
					}
					return answer{}
				})
			}
			release := func() {
				if _, err := newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{},
					"mended"); err != nil {
					t.Error(err)
				}
			}
			refuse(c.before)
			appendTo(t, db, "payments", 40, 4, 0)
			archived := func(cfg *relay.Config) { cfg.ArchiveDays = c.days }
			stop := startRelay(t, newRelay(t, db, b, config(quickHold, archived)))
			pgtest.AwaitSQL(t, db, `select count(*) >= 10 from `+c.table)
			awaitDrained(t, db)
			db.Exec(t, `create function keep() returns trigger language plpgsql as 'begin return null; end'`)
			db.Exec(t, `create trigger keep before delete on `+c.table+` for each row execute function keep()`)
			refuse(c.then)
			if c.table == parked {
				release()
			}
			pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%' || $1 || '%')`, c.says)
			db.Exec(t, `drop trigger keep on `+c.table)
			if c.then == tooLarge.err { //nolint:errorlint // the one of the table above
				pgtest.AwaitSQL(t, db, `select count(*) = 10 from outbox_parked`)
				release()
			}
			b.set(nil)
			awaitEmpty(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			checkEveryKey(t, b, 4, 10)
		})
	}
}

// TestUpdateOfAClaimedEvent: somebody changes a row of outbox_event while a relay publishes it. docs/guarantees.md says
// what becomes of it: what was read is published, and the row goes; with a key of another lane it is published again.
func TestUpdateOfAClaimedEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   string
	}{
		"payload": {`update outbox_event set payload = '1'`, "k=0"},
		"key": {`update outbox_event e set key = (select 'm' || g from generate_series(1, 1000) g
			where (hashtextextended(('m' || g) collate "C", 0) & 31) <> e.lane limit 1)`, "k=0 m=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			to := &memory{verdict: func(call int, _ event.Event) error {
				if call == 1 {
					db.Exec(t, c.change)
				}
				return nil
			}}
			db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')`)
			stop := startRelay(t, newRelay(t, db, to, config()))
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range to.events() {
				got = append(got, strings.TrimRight(e.Key, "0123456789")+"="+string(e.Payload))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("published: %q, want %s", got, c.want)
			}
		})
	}
}
