package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// words are what relay and consumer have logged, and how often something told of a fault.
type words struct {
	mu    sync.Mutex
	b     strings.Builder
	loud  int
	lost  []string
	parks int
}

// Write implements io.Writer.
func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := string(p); strings.Contains(s, "level=WARN") || strings.Contains(s, "level=ERROR") {
		w.loud++
	}
	return w.b.Write(p)
}

func (w *words) note(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// told is how often something was said or counted by then.
func (w *words) told() (n int) {
	w.note(func() { n = w.loud })
	return n
}

// take returns the log since the last call, and forgets what was said.
func (w *words) take() (log string) {
	w.note(func() {
		log = w.b.String()
		w.b.Reset()
		w.lost, w.parks = nil, 0
	})
	return log
}

// bad returns what was lost and how many events were parked since the last take.
func (w *words) bad() (lost []string, parks int) {
	w.note(func() { lost, parks = slices.Clone(w.lost), w.parks })
	return lost, parks
}

// cluster is a Kafka, with a way to it that is not under test.
type cluster struct {
	brokers []string
	connect func() (net.Conn, error) // for the proxy
	mech    sasl.Mechanism
}

// life is one relay and one consumer behind a proxy, with two topics and a database of their own.
type life struct {
	t  *testing.T
	db *pgtest.DB
	cluster
	proxy   *proxy
	topics  [2]string
	in      *inbox.Inbox
	words   *words
	written int // events

	stopRelay, stopConsumer func() error
	ended                   atomic.Pointer[error] // of a part that has ended by itself
	consumer                atomic.Pointer[consumer.Consumer]
}

const keys = 4

func newLife(t *testing.T, k cluster) (*life, error) {
	t.Helper()
	l := &life{t: t, cluster: k, words: &words{}, db: pgtest.New(t, migrations.Outbox, migrations.Inbox)}
	for i := range l.topics {
		l.topics[i] = kafkatest.TopicAt(t, k.brokers, 2)
	}
	l.db.Exec(t, `create table effect (n bigint generated always as identity, id uuid not null, topic text not null,
		key text not null, seq int not null)`)
	var err error
	if l.proxy, err = newProxy(k.connect); err != nil {
		return nil, err
	}
	if l.in, err = inbox.New(l.db.Pool, "worker", inbox.Config{Schema: l.db.Schema, Logger: l.log()}); err != nil {
		return nil, err
	}
	if err := l.startRelay(); err != nil {
		return nil, err
	}
	return l, l.startConsumer()
}

func (l *life) log() *slog.Logger { return slog.New(slog.NewTextHandler(l.words, nil)) }

// runs runs a part until the returned function is called, which returns the part's error.
func (l *life) runs(name string, run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			err = fmt.Errorf("the %s has ended: %w", name, err)
			l.ended.Store(&err)
		}
		done <- err
	}()
	return func() error {
		cancel()
		return <-done
	}
}

func (l *life) startRelay() error {
	box, err := relay.Open(l.db.Pool, l.db.Schema)
	if err != nil {
		return err
	}
	tell := func() { l.words.note(func() { l.words.loud++ }) }
	to, err := publisher.NewKafka(l.brokers, publisher.Config{
		ClientID: "relay", Pin: box.Pin, Logger: l.log(), Dial: l.proxy.dial, SASL: l.mech, Timeout: 2 * time.Second,
		RecheckEvery: time.Second,
		Observer:     publisher.Observer{Failed: func(publisher.FailedInfo) { tell() }},
	})
	if err != nil {
		return err
	}
	r, err := relay.New(l.db.Pool, to, relay.Config{
		Schema: l.db.Schema, Lease: 15 * time.Second, HoldAfter: time.Second, ProbeAwake: 5 * time.Millisecond,
		Logger: l.log(), DrainTimeout: time.Second,
		Observer: relay.Observer{
			PublishFailed: func(int, error) { tell() },
			Parked:        func(n int) { l.words.note(func() { l.words.parks += n }) },
		},
	})
	if err != nil {
		return err
	}
	stop := l.runs("relay", r.Run)
	l.stopRelay = func() error { return errors.Join(stop(), to.Close()) }
	return nil
}

func (l *life) startConsumer() error {
	h := l.in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		_, err := tx.Exec(ctx, `insert into effect (id, topic, key, seq) values ($1, $2, $3, $4::text::int)`,
			e.ID.String(), e.Topic, e.Key, string(e.Payload))
		return err
	})
	c, err := consumer.New(h, l.brokers, l.topics[:], consumer.Config{
		Group: l.topics[0], ClientID: "consumer", SessionTimeout: 6 * time.Second, RebalanceTimeout: 6 * time.Second,
		HeartbeatInterval: 100 * time.Millisecond, FetchWait: 50 * time.Millisecond, CommitEvery: 50 * time.Millisecond,
		ResumeEvery: 300 * time.Millisecond, Dial: l.proxy.dial, SASL: l.mech, Logger: l.log(),
		Observer: consumer.Observer{Lost: func(r consumer.LostRange) {
			l.words.note(func() {
				l.words.lost = append(l.words.lost, fmt.Sprintf("%v from %d to %d", r.Partition, r.From, r.To))
			})
		}},
	})
	if err != nil {
		return err
	}
	l.consumer.Store(c)
	l.stopConsumer = l.runs("consumer", c.Run)
	return nil
}

// restart is what a deployment does to a worker.
func (l *life) restart() error { return errors.Join(l.stopConsumer(), l.startConsumer()) }

// stop ends both. The proxy must pass everything on by now.
func (l *life) stop() error {
	err := errors.Join(l.stopConsumer(), l.stopRelay())
	l.proxy.close()
	return err
}

// write appends an event for each key in each topic.
func (l *life) write(ctx context.Context) error {
	_, err := l.db.Pool.Exec(ctx, `insert into outbox_event (topic, key, type, payload)
		select t, 'k' || g, 'T', convert_to($2::int::text, 'UTF8') from unnest($1::text[]) t, generate_series(1, $3::int) g`,
		l.topics[:], l.written, keys)
	if err == nil {
		l.written += keys * len(l.topics)
	}
	return err
}

// query are the ways in which not all events are where they should be, or null.
const query = `select nullif(concat_ws(', ',
	(select count(*) || ' of ' || $1::int || ' effects' from effect having count(*) <> $1::int),
	(select count(*) - count(distinct id) || ' effects twice' from effect having count(*) <> count(distinct id)),
	(select count(*) || ' in the outbox' from outbox_event having count(*) > 0),
	(select count(*) || ' in the journal' from outbox_claim having count(*) > 0),
	(select count(*) || ' held' from outbox_held having count(*) > 0),
	(select count(*) || ' parked by the relay' from outbox_parked having count(*) > 0),
	(select count(*) || ' keys parked by the relay' from outbox_parked_key having count(*) > 0),
	(select count(*) || ' parked or quarantined by the inbox' from inbox_parked having count(*) > 0),
	(select count(*) || ' effects before an earlier one' from (select seq, lag(seq) over (partition by topic, key
		order by n) as before from effect) e where before > seq having count(*) > 0)), '')`

// whole waits until each event has its effect, once and in order, and nothing is left over. parks says that Kafka has
// refused events for certain: they are released.
func (l *life) whole(ctx context.Context, parks bool) error {
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		var wrong *string
		if err := l.db.Pool.QueryRow(ctx, query, l.written).Scan(&wrong); err != nil {
			return fmt.Errorf("%w: %s", err, deref(wrong))
		}
		halted := l.consumer.Load().Status().Halted()
		if wrong == nil && len(halted) == 0 {
			return nil
		}
		if ended := l.ended.Load(); ended != nil {
			return *ended
		}
		if parks && strings.Contains(deref(wrong), "parked by the relay") {
			if err := l.release(ctx); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s; halted: %v", deref(wrong), halted)
		}
	}
}

func (l *life) effects(ctx context.Context) (n int, err error) {
	err = l.db.Pool.QueryRow(ctx, `select count(*) from effect`).Scan(&n)
	return n, err
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (l *life) release(ctx context.Context) error {
	o, err := operator.New(l.db.Pool, l.db.Schema, "ada")
	if err != nil {
		return err
	}
	rows, err := l.db.Pool.Query(ctx, `select topic, key from outbox_parked_key where state = 'parked'`)
	if err != nil {
		return err
	}
	type parked struct{ Topic, Key string }
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[parked])
	for _, p := range list {
		_, released := o.ReleaseKey(ctx, "", p.Topic, p.Key, admin.Seen{}, "the answer was false")
		if !errors.Is(released, admin.ErrNotParked) {
			err = errors.Join(err, released)
		}
	}
	return err
}

// inKafka compares the log, which another client reads from the broker itself, with what was written.
func (l *life) inKafka() error {
	var wrong []error
	records := 0
	for _, topic := range l.topics {
		seen, last := map[string]bool{}, map[string]int{}
		for _, r := range kafkatest.ReadAllAt(l.t, l.brokers, topic) {
			records++
			id, seq := r.Get("ce_id"), 0
			if seen[id] {
				continue // a repetition
			}
			seen[id] = true
			if _, err := fmt.Sscan(string(r.Value), &seq); err != nil {
				return err
			}
			if before, ok := last[string(r.Key)]; ok && seq <= before {
				wrong = append(wrong, fmt.Errorf("%s of %s is behind %d", r.Value, r.Key, before))
			}
			last[string(r.Key)] = seq
		}
		if n := l.written / len(l.topics); len(seen) != n {
			wrong = append(wrong, fmt.Errorf("%s has %d events, want %d", topic, len(seen), n))
		}
	}
	return errors.Join(wrong...)
}
