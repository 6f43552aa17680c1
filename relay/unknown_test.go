package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestP3_7_UnknownCommitsOfHeldAndParked: the reply to a COMMIT is lost, of claims and settles that hold, drain, park
// and release. Whether the COMMIT happened, did not happen, or happens late: no event is lost, inverted, or numbered
// twice, and no key is marked without parked events.
func TestP3_7_UnknownCommitsOfHeldAndParked(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{
		"cut before": pgtest.CutBefore, "reply dropped": pgtest.DropReply, "cut after": pgtest.CutAfter,
		"late": pgtest.Late,
	} {
		for _, step := range []string{"take marked", "drain", "list", "settle entries"} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				testUnknownCommit(t, step, action)
			})
		}
	}
}

func testUnknownCommit(t *testing.T, step string, action pgtest.Action) {
	db, b := outboxDB(t), newBroker(2)
	o := newOperator(t, db)
	away, refusals := 5, 2
	b.set(func(e *event.Event, partition int32) answer {
		switch {
		case partition == 1 && away > 0:
			away--
			return answer{err: errAway, written: away%2 == 0}
		case e.Key == "k3" && string(e.Payload) == "5" && refusals > 0:
			refusals--
			return tooLarge
		}
		return answer{}
	})
	appendTo(t, db, "payments", 400, 20, 0)
	proxy := pgtest.NewProxy(t, db.URL)
	trap := proxy.On(commitAfter(step), 0, action)
	r, err := relay.New(poolAt(t, proxy.URL()), b, config(quickHold, func(c *relay.Config) { c.Pumps = 1 }))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	release := func() { // once the key is parked
		_, _ = o.ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "try again")
	}
	// A late COMMIT holds the lane's lock until the test lets it through: do not wait for it.
	again, released := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(released)
		for range again {
			release()
		}
	}()
	pgtest.Await(t, "the fault", func() (bool, error) {
		select {
		case again <- struct{}{}:
		default:
		}
		select {
		case <-trap.Fired():
			return true, nil
		default:
			return false, nil
		}
	})
	appendTo(t, db, "payments", 400, 20, 20)
	trap.Release()
	close(again)
	<-released
	pgtest.Await(t, "everything to be published", func() (bool, error) {
		release()
		return pgtest.One[bool](t, db,
			`select not exists (select from outbox_event) and not exists (select from outbox_claim)
			and not exists (select from outbox_held) and not exists (select from outbox_parked) and not exists (select
				from outbox_parked_key)`), nil
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 40)
}

// TestP3_2_CrashUndoesSettle: settles do not wait for the disk. After a crash of the server a lane's last entry may be
// open again, and its events are above the floor. They are sent again under their numbers, also when a pooler or a
// reconnect hides the crash.
func TestP3_2_CrashUndoesSettle(t *testing.T) {
	t.Parallel()
	for name, hide := range map[string]func(f *floors){
		"behind a pooler":                         func(*floors) {},
		"while the pump had no connection":        func(f *floors) { f.Disconnect() },
		"and the lane has marks":                  nil,
		"while other connections were made again": func(f *floors) { f.must(f.Reconnect(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := driven(t, outboxDB(t))
			const row = `insert into outbox_event (id, message_id, topic, key, type, payload) overriding system value
				select $1, $2, 'payments', 'k', 'T', '0'`
			f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')`)
			if hide == nil {
				f.db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, reason, code)
					select lane, '', 'payments', 'other', 'r', 'C' from outbox_event`)
			}
			f.drain()
			e := f.to.events()[0]
			f.db.Exec(t, row, 1, e.ID)
			f.db.Exec(t, `insert into outbox_claim values ($1, $2, '{1}', array[$2::bigint])`, e.Position.Lane,
				e.Position.Seq)
			f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '1')`)
			if hide != nil {
				hide(f)
			}
			f.drain()
			log := f.to.events()
			checkNumbers(t, log)
			if len(log) != 3 || log[1].ID != e.ID || log[1].Position.Seq != e.Position.Seq ||
				log[2].Position.Seq <= e.Position.Seq {
				t.Errorf("published: %+v", log)
			}
			if n := pgtest.One[int](t, f.db,
				`select (select count(*) from outbox_claim) + (select count(*) from outbox_event)`); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}
