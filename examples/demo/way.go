package main

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// way reads where each payment is: from the tables, and from the topic with a client of its own.
type way struct {
	s         *stack
	db        *pgxpool.Pool
	client    *kgo.Client
	kafkaAway atomic.Bool

	mu      sync.Mutex
	records int
	of      map[string]int // records by payment
	last    []*kgo.Record  // the last ones of different payments
}

func newWay(s *stack, db *pgxpool.Pool) (*way, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.settings.Brokers...), kgo.ConsumeTopics(s.settings.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return &way{s: s, db: db, client: client, of: map[string]int{}}, err
}

func (w *way) close() { w.client.Close() }

// run counts records until ctx ends.
func (w *way) run(ctx context.Context) {
	for ctx.Err() == nil {
		fetched := w.client.PollFetches(ctx)
		w.mu.Lock()
		fetched.EachRecord(func(r *kgo.Record) {
			var p contract.PaymentCreated
			_ = json.Unmarshal(r.Value, &p) // the demo's own events are JSON
			w.records++
			w.of[p.PaymentID.String()]++
			w.last = slices.DeleteFunc(w.last, func(other *kgo.Record) bool {
				return string(other.Value) == string(r.Value)
			})
			w.last = append(w.last, r)
			w.last = w.last[max(len(w.last)-3, 0):]
		})
		w.mu.Unlock()
	}
}

// again produces the last records once more, byte for byte.
func (w *way) again(ctx context.Context, t *topic) (int, error) {
	w.mu.Lock()
	last := slices.Clone(w.last)
	w.mu.Unlock()
	return len(last), t.produce(ctx, last)
}

// state is what the page draws.
type state struct {
	Counts                          figures
	Payments                        []onWay // the last ones, the newest first
	Parts                           []part
	KafkaAway, MayTakeKafka, Frozen bool
	Busy                            string
	Lines                           []string
}

type part struct {
	Name string
	Runs bool
}

// figures count each step.
type figures struct {
	Payments, Records, Pairs, Mails, Parked int
	Wrong                                   int // payments with more or less than a pair
}

// onWay is where a payment is.
type onWay struct {
	ID, Account string
	At          time.Time
	Outbox      bool // its event waits there
	Records     int  // in Kafka
	Inbox       bool // the ledger's inbox has its id
	Entries     int  // in the ledger
	Mail        string
	Parked      bool
}

// counts counts each step.
func (w *way) counts(ctx context.Context) (c figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = w.db.QueryRow(ctx, pgschema.Expand(queryPlayCounts, w.s.prefix)).Scan(&c.Payments, &c.Pairs, &c.Parked,
		&c.Wrong)
	c.Mails = w.s.box.Accepted()
	w.mu.Lock()
	defer w.mu.Unlock()
	c.Records = w.records
	return c, err
}

// look reads what the page draws, without what only the page knows.
func (w *way) look(ctx context.Context) (now state, err error) {
	if now.Counts, err = w.counts(ctx); err != nil {
		return state{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rows, err := w.db.Query(ctx, pgschema.Expand(queryWay, w.s.prefix), ledger.Name)
	if err != nil {
		return state{}, err
	}
	now.Payments, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p onWay, err error) {
		err = row.Scan(&p.ID, &p.Account, &p.At, &p.Outbox, &p.Inbox, &p.Entries, &p.Mail, &p.Parked)
		return p, err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range now.Payments {
		now.Payments[i].Records = w.of[now.Payments[i].ID]
	}
	return now, err
}
