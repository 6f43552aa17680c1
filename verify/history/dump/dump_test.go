package dump

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
	"github.com/effectonce/effectonce/verify/history/tap"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

func TestQueries(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	db.Exec(t, tables.SQLTables)
	pgtest.PrepareAll(t, db, map[string]string{
		"now": sqlNow, "business": sqlBusiness, "effects": sqlEffects, "ledger": sqlLedger, "rows": sqlRows,
		"keys": sqlKeys, "claims": sqlClaims,
		"lanes": sqlLanes, "discards": sqlDiscards, "mended": sqlMended, "consumers": sqlConsumers, "inbox": sqlInbox,
		"parked":     sqlInboxParked,
		"inbox keys": sqlInboxKeys, "halted": sqlHalted, "dropped": sqlDroppedBefore, "undecided": sqlUndecided,
		"draw": tables.SQLNextVersion, "record": tables.SQLRecord, "apply": tables.SQLApply,
	})
}

// TestActionsAreKnown: the dump knows what each action of an operator does to events. package audit refuses others.
func TestActionsAreKnown(t *testing.T) {
	t.Parallel()
	for _, action := range audit.Actions() {
		if _, ok := meanings[action]; !ok {
			t.Errorf("%q: say in meanings what it does to events", action)
		}
	}
	if len(meanings) != len(audit.Actions()) {
		t.Errorf("%d actions have meanings, and there are %d", len(meanings), len(audit.Actions()))
	}
}

const name = "ledger"

// scene is a run of one producer, one relay and one consumer in this process.
type scene struct {
	t      *testing.T
	db     *pgtest.DB
	topic  string
	dir    string
	writer *history.Writer // the producer's
	site   Site
	paid   int
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, db: pgtest.New(t, migrations.Outbox, migrations.Inbox), dir: t.TempDir()}
	s.db.Exec(t, tables.SQLTables)
	s.topic = kafkatest.Topic(t, 3, map[string]string{"max.message.bytes": "20000"})
	s.writer = s.history("producer")
	s.site = Site{
		DB: s.db.Pool, Brokers: kafkatest.Brokers(t), Topics: []string{s.topic},
		Consumers: []Consumer{{Name: name, Group: s.topic, Topics: []string{s.topic}}},
	}
	return s
}

func (s *scene) history(process string) *history.Writer {
	s.t.Helper()
	w, err := history.Create(s.dir, process)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := w.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return w
}

var errRolledBack = errors.New("the business said no")

// pay appends an event of a key, and rolls back when told.
func (s *scene) pay(key string, change func(*event.Event, *history.Event), rollback bool) history.Event {
	s.t.Helper()
	var recorded history.Event
	var op int64
	err := pgx.BeginFunc(s.t.Context(), s.db.Pool, func(tx pgx.Tx) error {
		version, err := tables.NextVersion(s.t.Context(), tx, "", key)
		if err != nil {
			return err
		}
		s.paid++
		e := event.Event{ID: event.NewID(), Topic: s.topic, Key: key, Type: "Paid", Payload: []byte(fmt.Sprint(s.paid))}
		recorded = tables.Describe(&e, version, fmt.Sprintf("payment-%d", s.paid))
		if change != nil {
			change(&e, &recorded)
		}
		if err := tables.Record(s.t.Context(), tx, recorded); err != nil {
			return err
		}
		if err := outbox.Append(s.t.Context(), tx, e); err != nil {
			return err
		}
		if op, err = s.writer.Write(history.Entry{
			Kind:   history.KindAppend,
			Events: []history.Event{recorded},
		}); err == nil && rollback {
			err = errRolledBack
		}
		return err
	})
	outcome := history.OK
	if rollback {
		outcome = history.Failed
	}
	if err != nil && !errors.Is(err, errRolledBack) {
		s.t.Fatal(err)
	}
	if _, err := s.writer.Write(history.Entry{Kind: history.KindAppended, Op: op, Outcome: outcome}); err != nil {
		s.t.Fatal(err)
	}
	return recorded
}

// run relays and consumes until done says that it is enough.
func (s *scene) run(done func()) {
	s.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	box, err := relay.Open(s.db.Pool, "")
	if err != nil {
		s.t.Fatal(err)
	}
	kafka, err := publisher.NewKafka(s.site.Brokers, publisher.Config{Pin: box.Pin})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = kafka.Close() }()
	w := s.history("relay")
	r, err := relay.New(s.db.Pool, tap.Publisher(w, kafka), relay.Config{
		ProbeAwake: 5 * time.Millisecond,
		Logger:     quiet, Observer: tap.Relay(w),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	w = s.history("worker")
	in, err := inbox.New(s.db.Pool, name, inbox.Config{Observer: tap.Inbox(w, name)})
	if err != nil {
		s.t.Fatal(err)
	}
	apply := tap.Effect(w, name)
	effect := func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		for _, e := range events {
			switch string(e.Payload) {
			case "broken":
				return inbox.Of(e, outcome.Terminal("broken", errors.New("cannot be booked")))
			case "skip":
				return inbox.Of(e, inbox.Skip)
			}
		}
		return apply(ctx, tx, events)
	}
	c, err := consumer.New(tap.Handler(w, name, in.Batch(effect)), s.site.Brokers, s.site.Topics, consumer.Config{
		Group: s.topic, HeartbeatInterval: 200 * time.Millisecond, CommitEvery: 20 * time.Millisecond, Logger: quiet,
		Observer: tap.Consumer(w, s.topic),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	done()
	stop()
	if err := g.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) verdict() history.Verdict {
	s.t.Helper()
	d, err := s.site.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := history.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	return history.Check(history.Input{Histories: all, Dump: d})
}

// A run with refusals on both sides, a rollback, a scheduled event and what a person did is read whole, and found
// correct.
func TestRead(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	s := newScene(t)
	poison := func(payload, who string) func(*event.Event, *history.Event) {
		return func(e *event.Event, h *history.Event) {
			if who == "broker" { // what cannot be compressed is too large for the topic
				var b strings.Builder
				for b.Len() < 60_000 {
					b.WriteString(event.NewID().String())
				}
				payload = b.String()
			}
			e.Payload, h.Poison, h.Skipped, h.Digest = []byte(payload), who, payload == "skip",
				history.Digest([]byte(payload))
		}
	}
	for i := range 60 {
		s.pay(fmt.Sprintf("key-%d", i%7), nil, i%9 == 0)
		s.pay("", nil, false)
	}
	large := s.pay("large", poison("", "broker"), false)
	s.pay("large", nil, false)
	broken := s.pay("broken", poison("broken", "effect"), false)
	s.pay("broken", nil, false)
	s.pay("key-1", poison("skip", ""), false)
	later := func(e *event.Event, h *history.Event) {
		e.NotBefore, h.Scheduled = time.Now().Add(time.Hour), true
	}
	s.pay("key-2", later, false)
	cancelled := s.pay("cancelled", later, false)
	given := s.pay("given up", poison("", "broker"), false)
	auditor := NewAuditor(s.history("audit"), s.site)
	s.run(func() {
		pgtest.AwaitSQL(t, s.db,
			`select not exists (select from outbox_event) and (select count(*) = 3 from outbox_parked)`)
		if err := auditor.Once(t.Context()); err != nil {
			t.Error(err)
		}
		person, err := operator.New(s.db.Pool, "", "kim")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := person.DiscardKey(t.Context(), "", s.topic, "given up", admin.Seen{},
			"it is too large"); err != nil {
			t.Error(err)
		}
		if _, _, err := person.CancelAllScheduled(t.Context(), s.topic, &cancelled.Key, nil, "not now"); err != nil {
			t.Error(err)
		}
		pgtest.AwaitSQL(t, s.db, `select (select count(*) = 2 from inbox_parked)
			and (select count(*) + 2 + 1 + 2 + 2 = (select count(*) from history_business) from inbox_message)`)
	})
	if err := auditor.Once(t.Context()); err != nil {
		t.Error(err)
	}
	v := s.verdict()
	if !v.OK() {
		t.Error(v)
	}
	want := history.Counts{
		Events: 121, RolledBack: 7, Effects: 113, Parked: 2, Discarded: 2, InboxParked: 2,
		Scheduled: 1,
	}
	c := v.Counts
	got := history.Counts{
		Events: c.Events, RolledBack: c.RolledBack, Effects: c.Effects, Parked: c.Parked,
		Discarded: c.Discarded, InboxParked: c.InboxParked, Scheduled: c.Scheduled,
	}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if c.Audits == 0 || c.LanesTaken < relay.Lanes || c.Attempts < c.Records || c.RefusedSends < 2 {
		t.Errorf("counted %+v", c)
	}
	s.spoil(large, broken, given)
}

// spoil takes from the databases what nobody may take, and looks whether it is missed.
func (s *scene) spoil(large, broken, given history.Event) {
	s.t.Helper()
	for _, one := range []struct {
		name   history.Name
		change string
	}{
		{history.Lost, fmt.Sprintf(`delete from outbox_parked where message_id = '%s'`, large.ID)},
		{history.Unapplied, fmt.Sprintf(`delete from inbox_parked where message_id = '%s'`, broken.ID)},
		{
			history.SecondEffect,
			`insert into history_effect (consumer, message_id, tenant, topic, key, version, business, record_partition,
					record_offset) select consumer, message_id, tenant, topic, key, version, business, 0, 0
					from history_effect order by ord limit 1`,
		},
		{
			history.EffectMissing,
			`delete from history_effect where ord = (select ord from history_effect order by ord offset 5 limit 1)`,
		},
		{
			history.EffectWithoutRow,
			`set local effectonce.inbox = 'forget'; delete from inbox_message where message_id =
					(select message_id from history_effect order by ord desc limit 1)`,
		},
		{history.OverdueLease, `update outbox_lane set owner = gen_random_uuid() where lane = 3`},
		{history.FenceWentBack, `update outbox_lane set fence = 0 where lane = 4`},
	} {
		s.db.Exec(s.t, one.change)
		if v := s.verdict(); v.Count(one.name) == 0 {
			s.t.Errorf("%s: nothing is missed: %s", one.name, v)
		}
	}
	s.db.Exec(s.t, fmt.Sprintf(`delete from outbox_audit where detail->>'key' = '%s'`, given.Key))
	if v := s.verdict(); !slices.ContainsFunc(v.Violations, func(o history.Violation) bool {
		return o.Name == history.Lost && o.Count == 2
	}) {
		s.t.Errorf("a discard without its audit is no discard: %s", v)
	}
	// And a second look at offsets that were not looked at: they have passed what was parked and is gone.
	fresh := NewAuditor(s.history("audit-2"), s.site)
	if err := fresh.Once(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if v := s.verdict(); v.Count(history.OffsetPassedWork) < 2 {
		s.t.Errorf("the audit has missed work: %s", v)
	}
}
