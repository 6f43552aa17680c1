package relay_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// checkNumbers checks that within a lane a number belongs to one event, that an event keeps its number, and that the
// numbers of first occurrences rise.
func checkNumbers(t *testing.T, log []event.Event) {
	t.Helper()
	type lane struct {
		epoch string
		lane  int16
	}
	type place struct {
		lane lane
		seq  int64
	}
	type occurrence struct {
		epoch string
		id    uuid.UUID
	}
	at, of, last := map[place]uuid.UUID{}, map[occurrence]place{}, map[lane]int64{}
	for _, e := range log {
		p, o := place{lane{e.Position.Epoch, e.Position.Lane}, e.Position.Seq}, occurrence{e.Position.Epoch, e.ID}
		if id, ok := at[p]; ok && id != e.ID {
			t.Fatalf("lane %v number %d means %s and %s", p.lane, p.seq, id, e.ID)
		}
		before, again := of[o]
		if again && before != p {
			t.Fatalf("event %v has numbers %v and %v", o, before, p)
		}
		if !again && p.seq <= last[p.lane] {
			t.Fatalf("lane %v: number %d first occurs after %d", p.lane, p.seq, last[p.lane])
		}
		at[p], of[o] = e.ID, p
		last[p.lane] = max(last[p.lane], p.seq)
	}
}

// statement matches a statement of the relay by its first line.
func statement(name string) func(sql string) bool {
	return func(sql string) bool { return strings.HasPrefix(sql, "-- relay: "+name+"\n") }
}

// commitAfter matches the first COMMIT after a statement.
func commitAfter(name string) func(sql string) bool {
	var seen atomic.Bool
	return func(sql string) bool {
		if statement(name)(sql) {
			seen.Store(true)
		}
		return seen.Load() && pgtest.IsCommit(sql)
	}
}

func poolAt(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// awaitTrap waits until a trap has sprung at a claim that reads in bulk, and appends more events whenever all are
// published: at first the floors are zero, and lanes are read in bulk only once the floors are found.
func awaitTrap(t *testing.T, db *pgtest.DB, trap *pgtest.Trap, more func()) {
	t.Helper()
	pgtest.Await(t, "the fault", func() (bool, error) {
		select {
		case <-trap.Fired():
			return true, nil
		default:
		}
		if pgtest.One[bool](t, db, `select not exists (select from outbox_event)`) {
			more()
		}
		return false, nil
	})
}

func TestP3_7_UnknownCommits(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{
		"cut before": pgtest.CutBefore, "reply dropped": pgtest.DropReply, "cut after": pgtest.CutAfter,
		"late": pgtest.Late,
	} {
		for _, step := range []string{"take", "read", "journal", "settle", "renew", "take over"} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				db, to, events := outboxDB(t), &memory{}, 0
				more := func() { fill(t, db, 500, 30); events += 500 }
				more()
				proxy := pgtest.NewProxy(t, db.URL)
				trap := proxy.On(commitAfter(step), 0, action)
				inBulk := step == "read" || step == "journal"
				r, err := relay.New(poolAt(t, proxy.URL()), to, config(func(c *relay.Config) {
					if c.Pumps = 1; inBulk {
						c.ClaimEvents = 3 * relay.Lanes
					}
				}))
				if err != nil {
					t.Fatal(err)
				}
				if inBulk {
					relay.SetBulkFrom(r, 1)
				}
				stop := startRelay(t, r)
				if inBulk {
					awaitTrap(t, db, trap, more)
				} else {
					<-trap.Fired()
				}
				more() // a late claim must not take these under other events' numbers
				trap.Release()
				awaitDrained(t, db)
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				log := to.events()
				checkNumbers(t, log)
				seen := map[uuid.UUID]bool{}
				for _, e := range log {
					seen[e.ID] = true
				}
				if len(seen) != events {
					t.Errorf("%d events published, want %d", len(seen), events)
				}
			})
		}
	}
}

func TestP5_RelaysShareLanes(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	shares := func() (n int) {
		return pgtest.One[int](t, db,
			`select count(distinct owner) filter (where n = 16) from (select owner, count(*) n from outbox_lane
					group by owner) o`)
	}
	fill(t, db, 3000, 60)
	stopA := startRelay(t, newRelay(t, db, to, config()))
	stopB := startRelay(t, newRelay(t, db, to, config()))
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	db.Exec(t, makeCounted)
	pgtest.Await(t, "two relays with 16 lanes each", func() (bool, error) { return shares() == 2, nil })
	fill2 := func() {
		db.Exec(t, `insert into outbox_event (topic, key, type, payload)
			select 'payments', 'k' || (g % 60), 'T', convert_to((50 + g / 60)::text, 'UTF8')
			from generate_series(0, 2999) g`)
	}
	fill2()
	if err := stopA(); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
	pgtest.AwaitSQL(t, db, `select count(distinct owner) = 1 and count(*) = 32 from outbox_lane`)
	if err := stopB(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkNumbers(t, log)
	if dup := checkOrder(t, log, 6000); dup != 0 {
		t.Errorf("%d duplicates in a clean hand-over", dup)
	}
}

// TestP3_6_Zombie: a relay loses its connection while Kafka has its request. Another relay takes over and sends the
// open entry again under the same numbers. Then the first relay continues, and must not settle.
func TestP3_6_Zombie(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	proxy := pgtest.NewProxy(t, db.URL)
	zombie := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	fill(t, db, 600, 40)
	r, err := relay.New(poolAt(t, proxy.URL()), zombie,
		config(func(c *relay.Config) { c.Pumps = 1 }))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	claimed := <-zombie.entered
	proxy.Refuse(true)
	proxy.CutAll()
	heir := &memory{}
	stopHeir := startRelay(t, newRelay(t, db, heir, config(func(c *relay.Config) { c.Name = "heir" })))
	awaitHeir(t, db, "heir", drained)
	numbers := map[uuid.UUID]event.Position{}
	for _, e := range heir.events() {
		numbers[e.ID] = e.Position
	}
	for _, e := range claimed {
		if p, ok := numbers[e.ID]; !ok || p.Seq != e.Position.Seq || p.Lane != e.Position.Lane {
			t.Fatalf("event %s was claimed at %+v, and sent after the take-over at %+v", e.ID, e.Position, p)
		}
		if numbers[e.ID].First {
			t.Fatal("an event of an open entry is not marked as a possible repetition")
		}
	}
	close(zombie.gate)
	proxy.Refuse(false)
	fill(t, db, 0, 1)
	if err := stopHeir(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Logf("the zombie ended with: %v", err)
	}
	checkNumbers(t, append(append([]event.Event(nil), claimed...), heir.events()...))
	if n := pgtest.One[int](t, db, `select count(*) from outbox_claim`); n != 0 {
		t.Errorf("%d journal entries left", n)
	}
}

func TestP3_2_DiscardedEventsLeaveAGap(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k', 'T', convert_to(g::text, 'UTF8')
			from generate_series(0, 4) g`)
	db.Exec(t,
		`insert into outbox_claim select lane, 101, array_agg(id order by id), array_agg(100 + id order by id)
			from outbox_event group by lane`)
	db.Exec(t, `delete from outbox_event where payload = '2'`)
	var gone int
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Observer.Claimed = func(_, discarded int, _ time.Duration) { gone += discarded }
	})))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var seqs []int64
	for _, e := range to.events() {
		seqs = append(seqs, e.Position.Seq)
	}
	first := seqs[0]
	if len(seqs) != 4 || gone != 1 || seqs[2] != first+3 || seqs[3] != first+4 {
		t.Errorf("numbers %v, %d discarded", seqs, gone)
	}
}

func TestP3_5_EntryOfDeletedEventsIsSettled(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_claim values (3, 7, '{1,2}', '{7,8}')`)
	stop := startRelay(t, newRelay(t, db, &memory{}, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestP5NewSystemRaisesTheIncarnation: outbox_meta was written on another system, as after a logical restore.
func TestP5NewSystemRaisesTheIncarnation(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"system":   `update outbox_meta set system_identifier = 1`,
		"timeline": `update outbox_meta set timeline = 'FFFFFFFF'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			db.Exec(t, change)
			fill(t, db, 100, 10)
			stop := startRelay(t, newRelay(t, db, to, config()))
			awaitDrained(t, db)
			fill(t, db, 100, 10)
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			want := pgtest.One[string](t, db,
				`select outbox_id::text || '.' || incarnation from outbox_meta where incarnation > 200000000`)
			for _, e := range to.events() {
				if e.Position.Epoch != want {
					t.Fatalf("epoch %s, want %s", e.Position.Epoch, want)
				}
			}
		})
	}
}

// TestP3_3_FailedBarrierPublishesNothing: the claim's COMMIT waits for a synchronous standby that does not exist, and
// the wait is cancelled. The claim is then visible but may be lost: its events must not be published, even if sessions
// are set to hear no warning.
func TestP3_3_FailedBarrierPublishesNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	fill(t, db, 10, 3)
	db.Exec(t, `alter system set synchronous_commit = 'local'`)
	db.Exec(t, `alter system set client_min_messages = 'error'`)
	db.RequireStandby(t, pgtest.Nobody)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config()))
	waiting := `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'
		and application_name like 'effectonce relay%'`
	cancelled := 0
	pgtest.Await(t, "a claim in the journal whose wait was cancelled", func() (bool, error) {
		tag, err := db.Pool.Exec(t.Context(), waiting)
		cancelled += int(tag.RowsAffected())
		if n := to.count(); n != 0 {
			t.Fatalf("%d events were published without a barrier", n)
		}
		return pgtest.One[int](t, db, `select count(*) from outbox_claim`) > 0 && cancelled > 5, err
	})
	if n := to.count(); n != 0 {
		t.Errorf("%d events were published without a barrier", n)
	}
	db.Exec(t, `alter system set synchronous_standby_names = ''`)
	db.Exec(t, `select pg_reload_conf()`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 10)
}

func TestPostgresAwayIsSaidOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for outages")
	}
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	fill(t, db, 500, 20)
	to := &memory{}
	var mu sync.Mutex
	var said []string
	back := make(chan struct{}, 10)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Observer.Outage = func(what string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				said = append(said, what+" away")
				return
			}
			said = append(said, what+" back")
			back <- struct{}{}
		}
	})))
	awaitDrained(t, db)
	server.StopImmediate()
	db.Pool.Reset() // its connections are dead, and it does not know
	server.Start(t)
	<-back
	pgtest.Await(t, "a connection to the restarted server", func() (bool, error) {
		return db.Pool.Ping(t.Context()) == nil, nil
	})
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select 'payments', 'k' || (g % 20), 'T', convert_to((25 + g / 20)::text, 'UTF8')
		from generate_series(0, 499) g`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 1000)
	mu.Lock()
	defer mu.Unlock()
	if len(said) != 2 || said[0] != "postgres away" || said[1] != "postgres back" {
		t.Errorf("logged %v", said)
	}
}

// TestDrainGivesUp: Kafka does not answer while the relay shuts down.
func TestDrainGivesUp(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	fill(t, db, 100, 10)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.DrainTimeout = -1; c.Pumps = 1 })))
	<-to.entered
	if err := stop(); err == nil || !strings.Contains(err.Error(), "DrainTimeout") {
		t.Errorf("error %v", err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_lane where owner is not null`); n != 0 {
		t.Errorf("%d lanes are still owned", n)
	}
	heir := &memory{}
	stopHeir := startRelay(t, newRelay(t, db, heir, config()))
	awaitDrained(t, db)
	if err := stopHeir(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, heir.events(), 100)
}
