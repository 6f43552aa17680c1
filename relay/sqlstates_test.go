package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// codesThatTheRelayKnows are SQLSTATEs that its code compares with, or that belong to a class that it does.
var codesThatTheRelayKnows = []string{
	"08P01", "08006", "22012", "23505", "25006", "25P03", "40001", "40003", "40P01", "42501", "42P01", "53100", "53200",
	"53300", "55000", "55P03", "57014", "57P01", "57P03", "XX001",
}

// fleet is a database whose relays are disturbed lane by lane.
type fleet struct {
	*pgtest.DB
	t       *testing.T
	faults  *pgtest.Faults
	archive int
	keys    []string // one for each lane
	round   int
	table   map[string][]string // codes by place and outcome
	cells   int
}

func newFleet(t *testing.T, archive int) *fleet {
	f := &fleet{
		DB: outboxDB(t), t: t, archive: archive, keys: make([]string, relay.Lanes), table: map[string][]string{},
	}
	f.faults = pgtest.NewFaults(t, f.DB)
	for n := 0; slices.Contains(f.keys, ""); n++ {
		key := fmt.Sprint("k", n)
		f.keys[pgtest.One[int](t, f.DB, `select (hashtextextended($1::text collate "C", 0) & 31)::integer`, key)] = key
	}
	return f
}

// text is a log that may be read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// end returns the last 4 KB of the log.
func (l *text) end() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b.Bytes()[max(0, l.b.Len()-4<<10):])
}

// of returns the message of the first line that has all the words; "": there is none.
func (l *text) of(words ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for line := range strings.Lines(l.b.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue lines
			}
		}
		_, message, _ := strings.Cut(line, "msg=")
		if quoted, err := strconv.QuotedPrefix(message); err == nil {
			message, _ = strconv.Unquote(quoted)
		}
		return message
	}
	return ""
}

// waits is whether a lane of the list has rows.
const waits = `select exists (select from outbox_event where lane = any ($1)) or
	exists (select from outbox_claim where lane = any ($1)) or exists (select from outbox_held where lane = any ($1)) or
	exists (select from outbox_parked where lane = any ($1)) or
	exists (select from outbox_parked_key where lane = any ($1)) or
	exists (select from outbox_scheduled where lane = any ($1))`

// rowsOfLanes are all rows that wait, and leftOfLanes says which, for a test that failed.
const (
	rowsOfLanes = `select 'event' as place, lane from outbox_event union all select 'claim', lane from outbox_claim
		union all select 'held', lane from outbox_held union all select 'parked', lane from outbox_parked
		union all select 'key', lane from outbox_parked_key union all select 'scheduled', lane from outbox_scheduled`
	leftOfLanes = `select coalesce(string_agg(place || ' ' || lanes, '; '), 'none') from (
		select place, string_agg(lane || ' (' || n || ')', ' ' order by lane) as lanes
		from (select place, lane, count(*) as n from (` + rowsOfLanes + `) r group by place, lane) l group by place) p`
)

// play starts a relay with all kinds of work in each lane. Lanes without a fault must finish it; then done is asked
// until it returns true, the faults are lifted, and every lane must finish.
func (f *fleet) play(bad []int16, raise func() (lift func()), done func(said *text) bool) (outages int32,
	said *text,
) {
	f.t.Helper()
	f.round++
	var mended atomic.Bool
	b := newBroker(2)
	b.set(func(e *event.Event, _ int32) answer {
		switch {
		case mended.Load():
		case e.Topic == "shut":
			return forbidden
		case string(e.Payload) == "2" && e.Topic == "payments":
			return tooLarge
		}
		return answer{}
	})
	for _, topic := range []string{"payments", "shut"} {
		f.Exec(f.t, `insert into outbox_event (topic, key, type, payload) select $1, k, 'T', convert_to(n::text, 'UTF8')
			from unnest($2::text[]) k, generate_series(1, 3) n order by n`, topic, f.keys)
	}
	f.Exec(f.t, `insert into outbox_scheduled (due, topic, key, type, payload) select now(), 'later', k, 'T', '1'
		from unnest($1::text[]) k`, f.keys)
	lift := raise()
	said = &text{}
	var away atomic.Int32
	stop := startRelay(f.t, newRelay(f.t, f.DB, b, config(func(c *relay.Config) {
		c.Logger, c.ArchiveDays = slog.New(slog.NewTextHandler(said, nil)), f.archive
		c.Observer.Outage = func(what string, err error) {
			if err != nil && what == "postgres" {
				away.Add(1)
			}
		}
	})))
	defer func() {
		if f.t.Failed() {
			f.t.Logf("%s\nThe relay said:\n%s", pgtest.One[string](f.t, f.DB, leftOfLanes), said.end())
		}
	}()
	o := newOperator(f.t, f.DB)
	settled := func(lanes []int16) func() (bool, error) {
		return func() (bool, error) {
			mended.Store(mended.Load() || pgtest.One[bool](f.t, f.DB, `select count(distinct lane) = cardinality($1::smallint[])
				from outbox_held where lane = any ($1)`, lanes))
			keys, err := o.BlockedKeys(f.t.Context(), admin.BlockedFilter{Limit: 100})
			if err != nil {
				return false, err
			}
			for _, k := range keys {
				if mended.Load() && !k.Releasing {
					_, err = o.ReleaseKey(f.t.Context(), k.Tenant, k.Topic, k.Key, admin.Seen{}, "mended")
					if err != nil && !strings.Contains(err.Error(), "SQLSTATE") {
						return false, err
					}
					if err != nil {
						fmt.Fprintf(said, "msg=%q %v\n", "the operator gets the error", err)
					}
				}
			}
			return !pgtest.One[bool](f.t, f.DB, waits, lanes), nil
		}
	}
	all := make([]int16, relay.Lanes)
	for i := range all {
		all[i] = int16(i)
	}
	others := slices.DeleteFunc(slices.Clone(all), func(lane int16) bool { return slices.Contains(bad, lane) })
	if len(others) > 0 {
		f.await(fmt.Sprintf("the work of all lanes but %v", bad), others, settled(others))
		mended.Store(true)
	}
	more := settled(bad)
	pgtest.Await(f.t, fmt.Sprintf("what is said of %v", bad), func() (bool, error) {
		if empty, err := more(); err != nil || empty {
			return empty, err
		}
		return done(said), nil
	})
	outages = away.Load()
	lift()
	f.await("the work of all lanes", all, settled(all))
	if err := stop(); err != nil {
		f.t.Error(err)
	}
	for _, key := range f.keys {
		if got := strings.Join(b.firsts(key), ""); len(got) != 7 || !inOrder(b, key) {
			f.t.Errorf("key %s: the first occurrences are %s", key, got)
		}
	}
	checkWatermark(f.t, b.events())
	return outages, said
}

// await waits until done, as long as lanes have less to do from time to time: a starved machine needs its time.
func (f *fleet) await(what string, of []int16, done func() (bool, error)) {
	f.t.Helper()
	left := func() int {
		return pgtest.One[int](f.t, f.DB, "select count(*) from ("+rowsOfLanes+") l where lane = any ($1)", of)
	}
	for over := false; !over; {
		before := left()
		pgtest.Await(f.t, what, func() (_ bool, err error) {
			over, err = done()
			return over || left() < before, err
		})
	}
}

func inOrder(b *broker, key string) bool {
	next := map[string]int{}
	for _, e := range b.events() {
		if n, _ := strconv.Atoi(string(e.Payload)); e.Key == key && n == next[e.Topic]+1 {
			next[e.Topic] = n
		}
	}
	return next["payments"] == 3 && next["shut"] == 3 && next["later"] == 1
}

// disturb has lanes fail in a place, each with its own SQLSTATE.
func (f *fleet) disturb(at pgtest.Place, codes []string) {
	f.t.Helper()
	var bad []int16
	for i := range codes {
		bad = append(bad, int16(i*5)%relay.Lanes) // of both pumps
	}
	if at.Table == "outbox_held" && at.Op == "UPDATE" { // of a topic one lane is tried, any
		codes = codes[:1]
		for bad = bad[:0]; len(bad) < relay.Lanes; {
			bad = append(bad, int16(len(bad)))
		}
	}
	outages, said := f.play(bad, func() (lift func()) {
		var lifts []func()
		for i, lane := range bad {
			lifts = append(lifts, f.faults.Raise(f.t, f.fault(at, lane), codes[i%len(codes)]))
		}
		return func() {
			for _, lift := range lifts {
				lift()
			}
		}
	}, func(said *text) bool {
		for i, lane := range bad {
			if said.of("(SQLSTATE "+codes[i%len(codes)]+")") == "" &&
				pgtest.One[bool](f.t, f.DB, waits, []int16{lane}) {
				return false
			}
		}
		return true
	})
	silent := 0
	for _, code := range codes {
		outcome := said.of("(SQLSTATE " + code + ")")
		if outcome == "" {
			silent++
			outcome = "its lane did all its work before it came to this"
		}
		f.note(at, code, outcome)
	}
	// Whether a try is undone depends on which try comes first.
	if silent == len(codes) && at.Statement != "relay: untry" {
		f.t.Errorf("%s: nothing was said of %v", at, codes)
	}
	if outages > 0 {
		f.t.Errorf("%s: %v: %d outages: %s", at, codes, outages, said.of("does not answer"))
	}
}

// fault is the class of a lane's rows in a place.
func (f *fleet) fault(at pgtest.Place, lane int16) pgtest.Fault {
	if at.Table == "outbox_event" && at.Op == "INSERT" { // the lane is not generated yet
		return pgtest.Fault{Place: at, Field: "key", Value: f.keys[lane]}
	}
	return pgtest.Fault{Place: at, Field: "lane", Value: fmt.Sprint(lane)}
}

// stop disturbs what a relay as a whole needs: a heartbeat is one transaction, and without one there are no lanes.
func (f *fleet) stop(at pgtest.Place, code string) {
	f.t.Helper()
	fault := pgtest.Fault{Place: at, Field: "name", Value: "disturbed"}
	if at.Table == "outbox_lane" {
		fault = f.fault(at, 3)
	}
	lift := f.faults.Raise(f.t, fault, code)
	fill(f.t, f.DB, 64, 64)
	said, b, named := &text{}, newBroker(2), "(SQLSTATE "+code+")"
	run := func() (ended chan error, stop func()) {
		ctx, cancel := context.WithCancel(f.t.Context())
		ended = make(chan error, 1)
		r := newRelay(f.t, f.DB, b, config(func(c *relay.Config) {
			c.Name, c.Logger = "disturbed", slog.New(slog.NewTextHandler(said, nil))
		}))
		go func() { ended <- r.Run(ctx) }()
		return ended, cancel
	}
	ended, end := run()
	published := func() (bool, error) { return pgtest.One[bool](f.t, f.DB, drained), nil }
	if at.Statement == "relay: leave" || at.Statement == "relay: release" || at.Op == "DELETE" {
		pgtest.Await(f.t, "the events", published)
		end()
	}
	outcome := ""
	pgtest.Await(f.t, fmt.Sprintf("what is said of %s in %s", code, at), func() (bool, error) {
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), named) {
				return false, fmt.Errorf("Run ends: %w", err)
			}
			outcome = "Run ends"
		default:
			outcome = said.of(named)
		}
		return outcome != "", nil
	})
	lift()
	if outcome == "Run ends" {
		end()
		ended, end = run()
	}
	pgtest.Await(f.t, "the events", published)
	end()
	if err := <-ended; err != nil {
		f.t.Errorf("%s: %s: %v", at, code, err)
	}
	// A relay that could not give its lanes back has left them for the time of its lease.
	f.Exec(f.t, "update outbox_lane set owner = null, lease_until = now() - interval '1 hour'")
	f.Exec(f.t, "delete from relay_member")
	f.note(at, code, outcome)
}

func (f *fleet) note(at pgtest.Place, code, outcome string) {
	f.cells++
	f.table[at.String()+": "+outcome] = append(f.table[at.String()+": "+outcome], code)
}

// TestSQLStates: each SQLSTATE of the server, raised by a trigger under each statement of the relay and at its COMMIT,
// for the rows of one lane. The other lanes finish all their work, the error and its lane are named, and nothing is
// called an outage; once the trigger is gone, each event is published, in the order of its key.
func TestSQLStates(t *testing.T) {
	t.Parallel()
	archives := []int{0, 3}
	if !draw.Nightly() {
		archives = archives[draw.Seed(t)/8%2:][:1]
	}
	for _, archive := range archives {
		t.Run(fmt.Sprint(archive, " days of archive"), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, archive)
			recorded := f.faults.Record(t)
			f.play(nil, func() func() { return func() {} }, func(*text) bool { return true })
			places := recorded()
			hand := pgtest.DealCodes(t, f.DB, draw.Size(1, 3), draw.Size(2, 3), codesThatTheRelayKnows)
			began := time.Now()
			places = slices.DeleteFunc(places, func(at pgtest.Place) bool {
				archived := strings.Contains(at.Statement, "archive") || at.Table == "outbox_archive"
				// This test's producer.
				own := at.Statement == "" || at.Table == "outbox_scheduled" && at.Op == "INSERT" ||
					strings.HasPrefix(at.Statement, "relay: prove") // see TestP7Proof
				return own || at.Table == "outbox_audit" || (archive > 0) != archived
			})
			rnd := rand.New(rand.NewPCG(draw.Seed(t), 2))
			rnd.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
			for _, at := range places[:draw.Size(min(4, len(places)), len(places))] {
				switch {
				case at.Table == "relay_member" || at.Table == "outbox_lane" && at.Statement != "relay: reserve":
					f.stop(at, hand()[0])
				default:
					f.disturb(at, hand())
				}
			}
			for _, outcome := range slices.Sorted(maps.Keys(f.table)) {
				t.Logf("%s: %d: %s", outcome, len(f.table[outcome]), strings.Join(f.table[outcome], " "))
			}
			t.Logf("%d cells in %v", f.cells, time.Since(began))
		})
	}
}
