package relay_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
)

// refuseK3 refuses one event of key k3.
func refuseK3(payload string) func(e *event.Event, _ int32) answer {
	return func(e *event.Event, _ int32) answer {
		if e.Key == "k3" && string(e.Payload) == payload {
			return tooLarge
		}
		return answer{}
	}
}

// TestP4ParksTheKey: a record that is certainly refused parks its key and nothing else. Later events wait behind it and
// never reach the log.
func TestP4ParksTheKey(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	b.set(refuseK3("5"))
	appendTo(t, db, "payments", 400, 20, 0)
	var behind atomic.Int64
	stop := startRelay(t, newRelay(t, db, b, config(
		func(c *relay.Config) { c.Observer.Behind = func(n int) { behind.Add(int64(n)) } })))
	awaitNoneHeld(t, db)
	appendTo(t, db, "payments", 400, 20, 20)
	awaitNoneHeld(t, db)
	for k := range 20 {
		want := 40
		if k == 3 {
			want = 5
		}
		checkKey(t, b, fmt.Sprint("k", k), want)
	}
	list, err := newOperator(t, db).Parked(t.Context(), admin.ParkedFilter{Key: "k3"})
	if err != nil || len(list) != 35 || behind.Load() != 20 {
		t.Fatalf("%d parked, %d put behind: %v", len(list), behind.Load(), err)
	}
	for i, e := range list {
		if e.Alone || e.MaybePublished || (e.Attempts == 1) != (i == 0) || (e.Code == "REFUSED") != (i == 0) {
			t.Errorf("parked %d: %+v", i, e)
		}
	}
	keys, err := newOperator(t, db).BlockedKeys(t.Context(), admin.BlockedFilter{})
	if err != nil || len(keys) != 1 || keys[0].Waiting != 35 || keys[0].Code != "REFUSED" ||
		keys[0].Error != "refused: too large" {
		t.Errorf("keys %+v: %v", keys, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkWatermark(t, b.events())
}

// awaitNoneHeld waits until no event is in the outbox, in the journal, or held.
func awaitNoneHeld(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db,
		`select not exists (select from outbox_event) and not exists (select from outbox_claim) and not exists (select
				from outbox_held)`)
}

// TestP4Release: an operator releases a key; it is refused again, corrected, and released again. Its events are
// published in order, under new numbers and the same ids, and before events that were appended meanwhile.
func TestP4Release(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	o := newOperator(t, db)
	b.set(refuseK3("5"))
	appendTo(t, db, "payments", 200, 20, 0)
	var released atomic.Int64
	stop := startRelay(t, newRelay(t, db, b, config(
		func(c *relay.Config) { c.Observer.Released = func(n int) { released.Add(int64(n)) } })))
	awaitNoneHeld(t, db)
	if n, err := o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "try again"); n != 5 || err != nil {
		t.Fatalf("released %d: %v", n, err)
	}
	pgtest.AwaitSQL(t, db,
		`select exists (select from outbox_parked where attempts = 2) and exists (select from outbox_parked_key
				where state = 'parked')`)
	head, err := o.Parked(t.Context(), admin.ParkedFilter{Limit: 1})
	if err != nil || len(head) != 1 {
		t.Fatal(head, err)
	}
	appendTo(t, db, "payments", 200, 20, 10)
	better := []byte("five")
	edit := admin.Edit{Payload: &better, AnyBytes: true}
	if err := o.EditParked(t.Context(), head[0].ID, edit, "smaller"); err != nil {
		t.Fatal(err)
	}
	if n, err := o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); n < 5 || err != nil {
		t.Fatalf("released %d: %v", n, err)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0", "1", "2", "3", "4", "five", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
		"17", "18", "19",
	}
	if got := b.firsts("k3"); !slices.Equal(got, want) {
		t.Errorf("key k3: %v", got)
	}
	if released.Load() < 5 {
		t.Errorf("%d events were reported as released", released.Load())
	}
	log := b.events()
	checkWatermark(t, log)
	for _, e := range log {
		if e.Position.MaybePublished {
			t.Errorf("event %s is marked as a possible repetition, but every attempt was certainly refused", e.ID)
		}
	}
}

// TestP4ReleaseIsNotOvertaken: an event that got its id before the release, and commits after it, is put behind the
// list.
func TestP4ReleaseIsNotOvertaken(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	b.set(refuseK3("0"))
	d, err := relay.Drive(t.Context(), newRelay(t, db, b, config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	f := &floors{Driver: d, t: t, db: db}
	appendTo(t, db, "payments", 4, 4, 0)
	_, err = d.Step(t.Context())
	f.must(err)
	late := f.begin(db, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k3', 'T', '1')`)
	b.set(nil)
	_, err = newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended")
	f.must(err)
	f.exec(late, "commit")
	_, err = d.Probe(t.Context())
	f.must(err)
	for range 4 {
		_, err = d.Step(t.Context())
		f.must(err)
	}
	checkKey(t, b, "k3", 2)
}

// TestP4ReleaseUnderLoad: events are appended to the key while its list is published a few events at a time.
func TestP4ReleaseUnderLoad(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	b.set(refuseK3("0"))
	appendTo(t, db, "payments", 2000, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.ClaimEvents = 64 })))
	awaitNoneHeld(t, db)
	b.set(nil)
	if _, err := newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		appendTo(t, db, "payments", 20, 20, 100+i)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 120)
}

// TestP4ParksTheEventAlone: by option, and for events without a key. Others continue, and a release needs no list.
func TestP4ParksTheEventAlone(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	o := newOperator(t, db)
	b.set(func(e *event.Event, _ int32) answer {
		if string(e.Payload) == "5" && (e.Key == "k3" || e.Key == "") {
			return tooLarge
		}
		return answer{}
	})
	appendTo(t, db, "payments", 200, 20, 0)
	db.Exec(t,
		`insert into outbox_event (topic, type, payload) select 'payments', 'T', convert_to(g::text, 'UTF8')
			from generate_series(0, 9) g`)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.OnFailure = relay.ParkEvent })))
	awaitNoneHeld(t, db)
	if got := b.firsts("k3"); !slices.Equal(got, []string{"0", "1", "2", "3", "4", "6", "7", "8", "9"}) {
		t.Errorf("key k3: %v", got)
	}
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 2 || !list[0].Alone || !list[1].Alone {
		t.Fatalf("parked %+v: %v", list, err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_parked_key`); n != 0 {
		t.Errorf("%d keys are marked", n)
	}
	b.set(nil)
	for _, e := range list {
		if err := o.ReleaseEvent(t.Context(), e.ID, "mended"); err != nil {
			t.Error(err)
		}
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := b.firsts("k3"); len(got) != 10 || got[9] != "5" || len(b.firsts("")) != 10 {
		t.Errorf("key k3: %v, keyless: %v", got, b.firsts(""))
	}
	checkWatermark(t, b.events())
}

// TestP4KeylessIsParkedAlone: an event without a key is parked alone without any option.
func TestP4KeylessIsParkedAlone(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	b.set(func(e *event.Event, _ int32) answer {
		if string(e.Payload) == "5" {
			return tooLarge
		}
		return answer{}
	})
	db.Exec(t,
		`insert into outbox_event (topic, type, payload) select 'payments', 'T', convert_to(g::text, 'UTF8')
			from generate_series(0, 99) g`)
	stop := startRelay(t, newRelay(t, db, b, config()))
	awaitNoneHeld(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_parked where alone`); n != 1 ||
		len(b.firsts("")) != 99 {
		t.Errorf("%d parked, %d published", n, len(b.firsts("")))
	}
}

// TestP4NothingLaterIsSentBeforePark: after a refusal, the claim sends no later event of that lane and partition.
// Otherwise a take-over could write the refused event after it.
func TestP4NothingLaterIsSentBeforePark(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	type seen struct {
		id  uuid.UUID
		seq int64
	}
	refused := map[int16]seen{}
	b.set(func(e *event.Event, _ int32) answer {
		lane := e.Position.Lane
		if string(e.Payload) == "5" && refused[lane].seq == 0 {
			refused[lane] = seen{e.ID, e.Position.Seq}
			return tooLarge
		}
		if r := refused[lane]; r.seq > 0 && e.Position.Seq > r.seq &&
			pgtest.One[int](t, db, `select count(*) from outbox_parked where message_id = $1`, r.id) == 0 {
			t.Errorf("lane %d: number %d was sent while %d was refused and not parked", lane, e.Position.Seq, r.seq)
		}
		return answer{}
	})
	appendTo(t, db, "payments", 1000, 100, 0)
	stop := startRelay(t, newRelay(t, db, b, config()))
	awaitNoneHeld(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if len(refused) == 0 || len(b.events())+pgtest.One[int](t, db, `select count(*) from outbox_parked`) != 1000 {
		t.Errorf("%d lanes with a refusal, %d published", len(refused), len(b.events()))
	}
}

// TestP4ParkTakesHeldEventsOfKey: many events of two keys are held for a partition. When it answers, it refuses the
// first event of one key. The rest of that key is in outbox_held, outside of the claim, and joins the list.
func TestP4ParkTakesHeldEventsOfKey(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	dead := b.partition(&event.Event{Key: "k3"})
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == dead {
			return answer{err: errAway}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 2000, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold, func(c *relay.Config) { c.ClaimEvents = 32 })))
	awaitDrained(t, db)
	b.set(refuseK3("0"))
	awaitNoneHeld(t, db)
	for k := range 20 {
		want := 100
		if k == 3 {
			want = 0
		}
		checkKey(t, b, fmt.Sprint("k", k), want)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_parked`); n != 100 {
		t.Errorf("%d parked", n)
	}
	b.set(nil)
	if _, err := newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 100)
}

// TestP4ReleaseToUnansweringPartition: released events are held like others, and stay before later ones.
func TestP4ReleaseToUnansweringPartition(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	b.set(refuseK3("0"))
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitNoneHeld(t, db)
	partition := b.partition(&event.Event{Key: "k3"})
	b.set(func(_ *event.Event, p int32) answer {
		if p == partition {
			return answer{err: errAway}
		}
		return answer{}
	})
	if _, err := newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	appendTo(t, db, "payments", 200, 20, 10)
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)
		and not exists (select from outbox_parked) and not exists (select from outbox_parked_key)`)
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 20)
}

// TestP9_8_ReleaseCarriesMaybe: an attempt was written and its reply lost, and the next was refused. When the event is
// released it is marked as a possible repetition; the events behind it are not.
func TestP9_8_ReleaseCarriesMaybe(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	o := newOperator(t, db)
	attempts := 0
	b.set(func(e *event.Event, _ int32) answer {
		if e.Key != "k3" || string(e.Payload) != "5" {
			return answer{}
		}
		if attempts++; attempts == 1 {
			return answer{err: errAway, written: true}
		}
		return tooLarge
	})
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config()))
	awaitNoneHeld(t, db)
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 5 || !list[0].MaybePublished || list[1].MaybePublished {
		t.Fatalf("parked %+v: %v", list, err)
	}
	b.set(nil)
	if _, err := o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	said := 0
	for _, e := range b.events() {
		if e.Position.MaybePublished {
			said++
			if e.Key != "k3" || string(e.Payload) != "5" || e.Position.First {
				t.Errorf("event %s of key %s is marked as a possible repetition", e.Payload, e.Key)
			}
		}
	}
	if said != 1 {
		t.Errorf("%d events are marked as possible repetitions", said)
	}
	checkEveryKey(t, b, 20, 10)
}

// TestP4ParkedSurvivesATakeOver: marks, and a release that was requested while no relay was running, survive.
func TestP4ParkedSurvivesATakeOver(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	o := newOperator(t, db)
	b.set(refuseK3("5"))
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config()))
	awaitNoneHeld(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, db, "payments", 200, 20, 10)
	stop = startRelay(t, newRelay(t, db, b, config()))
	awaitNoneHeld(t, db)
	checkKey(t, b, "k3", 5)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.set(nil)
	if n, err := o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); n != 15 || err != nil {
		t.Fatalf("released %d: %v", n, err)
	}
	if _, err := newRelay(t, db, b, config()).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop = startRelay(t, newRelay(t, db, b, config()))
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 20)
}

// TestP3_2_DiscardedWhileJournalled: an operator discards a released event during its publishing. The settle parks and
// deletes nothing, the mark goes, and the result says that the event may still be published.
func TestP3_2_DiscardedWhileJournalled(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	o := newOperator(t, db)
	b.set(refuseK3("0"))
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k3', 'T', '0')`)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.HoldAfter = -1 })))
	awaitNoneHeld(t, db)
	b.set(func(*event.Event, int32) answer { return answer{err: errAway} })
	if _, err := o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "try"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_claim)`)
	id := pgtest.One[int64](t, db, `select id from outbox_parked`)
	if d, err := o.DiscardEvent(t.Context(), id, "never mind"); err != nil ||
		d != (admin.DiscardResult{Events: 1, MaybePublished: 1}) {
		t.Fatalf("discarded %+v: %v", d, err)
	}
	b.set(refuseK3("0"))
	awaitEmpty(t, db)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k3', 'T', '1')`)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := b.firsts("k3"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("key k3: %v", got)
	}
}

// TestParkedReasonsAreText: a broker's error may not be valid text for a column.
func TestParkedReasonsAreText(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	b.set(func(e *event.Event, _ int32) answer {
		if e.Key == "k3" {
			return answer{err: &outcome.Refusal{
				Code: "CODE\x00", Err: errors.New("bad \x00 \xff" + strings.Repeat("long ", 400)),
			}}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 40, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.ProbeIdle = 250 * time.Millisecond })))
	awaitNoneHeld(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	list, err := newOperator(t, db).Parked(t.Context(), admin.ParkedFilter{Code: "CODE?"})
	if err != nil || len(list) != 1 || len(list[0].Error) > 1010 {
		t.Errorf("parked %+v: %v", list, err)
	}
}

// TestP4WhatIsPutAsideIsNotTakenAway: a user's trigger takes away what a settle parks, holds or marks. The events stay
// where they are, their lane is named, and the others go on.
func TestP4WhatIsPutAsideIsNotTakenAway(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"outbox_parked", "outbox_parked_key"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{verdict: func(_ int, e event.Event) error {
				if e.Key == "k1" {
					return refusedEvent
				}
				return nil
			}}
			fill(t, db, 30, 10)
			db.Exec(t, `create function away() returns trigger language plpgsql as 'begin return null; end';
				create trigger away before insert on `+table+` for each row execute function away()`)
			said := &text{}
			stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
				c.Logger = slog.New(slog.NewTextHandler(said, nil))
			})))
			pgtest.Await(t, "a line", func() (bool, error) { return said.of("takes away what is parked") != "", nil })
			pgtest.AwaitSQL(t, db, `select count(*) = 3 and min(key) = 'k1' and max(key) = 'k1' from outbox_event`)
			db.Exec(t, "drop trigger away on "+table)
			pgtest.AwaitSQL(t, db, `select count(*) = 3 from outbox_parked where key = 'k1'`)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.One[int](t, db, `select (select count(*) from outbox_event) + 10 * (select count(*)
				from outbox_parked_key)`); n != 10 {
				t.Errorf("left in the outbox, and ten times the marks: %d, want 10", n)
			}
		})
	}
}

// TestP4WhatIsHeldIsNotTakenAway: the same for a topic that is refused as a whole.
func TestP4WhatIsHeldIsNotTakenAway(t *testing.T) {
	t.Parallel()
	db, to, said := outboxDB(t), &memory{verdict: func(int, event.Event) error { return refusedTopic }}, &text{}
	fill(t, db, 30, 10)
	db.Exec(t, `create function away() returns trigger language plpgsql as 'begin return null; end';
		create trigger away before insert on outbox_held for each row execute function away()`)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Logger = slog.New(slog.NewTextHandler(said, nil))
	})))
	pgtest.Await(t, "a line", func() (bool, error) { return said.of("takes away what is held") != "", nil })
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event"); n != 30 {
		t.Errorf("%d events are left in the outbox, want 30", n)
	}
	db.Exec(t, "drop trigger away on outbox_held")
	pgtest.AwaitSQL(t, db, "select count(*) = 30 from outbox_held")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
