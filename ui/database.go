package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/admin"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// database is a database of the pages, with the cached reads.
type database struct {
	Database
	state     *shared[state]
	findings  *shared[examination]
	topics    *shared[listed[operator.Topic]]
	keys      map[string]*shared[listed[admin.BlockedKey]] // by side
	audits    map[string]*shared[listed[admin.AuditEntry]] // by side, and of idempotency keys
	scheduled *shared[listed[operator.ScheduledEvent]]
	archive   *shared[listed[operator.ArchiveDay]]
	relays    *shared[relaysRead]
	restored  *shared[[]doctor.Finding] // whether Kafka has newer events than the outbox
	// operations with an unknown outcome: first the stuck ones, then those that recovery still works on.
	operations *shared[listed[keysoperator.Operation]]
	failures   map[string]*shared[listed[admin.Failure]] // by side

	mu      sync.Mutex
	history []point                         // the last hour, the newest last
	details map[string]*shared[topicDetail] // by topic, for topics that a viewer has opened
}

// state is the result of a few cheap statements.
type state struct {
	Err       error                // the database cannot be read
	Outbox    *relay.Sample        // nil: no outbox, or the role may not read it
	Inbox     []consumer           // nil: no inbox, or the role may not read it
	HasInbox  bool                 // also without consumers
	MayChange bool                 // the role may change outbox or inbox
	Keys      *keysoperator.Counts // nil: no idempotency keys, or the role may not read them
	MayKeys   bool                 // the role may change idempotency keys
	Now       point                // the current figures
}

// consumer is a consumer of an inbox, partitionState its progress in one partition.
type (
	consumer       = inboxoperator.ConsumerDiagnosis
	partitionState = inboxoperator.PartitionState
)

// examination is the result of the doctor.
type examination struct {
	Findings []doctor.Finding
	// Ends are the ends of the consumers' partitions, if Kafka answered.
	Ends    map[partition]int64
	EndsErr error
}

type partition struct {
	topic     string
	partition int32
}

// examineEvery bounds the age of the doctor's findings, which cost some dozen statements. restoredEvery is the same for
// the check that reads from Kafka.
const (
	examineEvery  = 15 * time.Second
	restoredEvery = 10 * time.Minute
)

func newDatabase(d Database, cfg Config, most limits) (*database, error) {
	if _, err := operator.New(d.Pool, d.Schema, viewer); err != nil {
		return nil, fmt.Errorf("ui: database %q: %w", d.Name, err)
	}
	one := &database{Database: d}
	one.state = &shared[state]{every: cfg.Refresh, timeout: cfg.Timeout, read: one.look, slots: most.looks}
	one.findings = &shared[examination]{
		every: max(examineEvery, cfg.Refresh), timeout: 3 * cfg.Timeout, slots: most.examinations,
		read: func(ctx context.Context) examination { return one.examine(ctx, cfg.Kafka) },
	}
	one.restored = &shared[[]doctor.Finding]{
		every: max(restoredEvery, cfg.Refresh), timeout: 2*cfg.Timeout + doctor.TailTimeout,
		slots: most.examinations,
		read: func(ctx context.Context) []doctor.Finding {
			if st, _ := one.state.get(ctx, cfg.Timeout); st.Outbox == nil {
				return nil
			}
			return doctor.Restored(ctx, one.subject(cfg.Kafka, false))
		},
	}
	one.relays = &shared[relaysRead]{every: cfg.Refresh, timeout: cfg.Timeout, read: one.readRelays}
	one.topics = list(cfg, func(ctx context.Context) ([]operator.Topic, error) {
		o, err := one.outbox(viewer)
		if err != nil {
			return nil, err
		}
		return o.Topics(ctx)
	})
	one.keys = map[string]*shared[listed[admin.BlockedKey]]{}
	one.audits = map[string]*shared[listed[admin.AuditEntry]]{}
	one.failures = map[string]*shared[listed[admin.Failure]]{}
	for _, where := range sides {
		one.keys[where] = list(cfg, func(ctx context.Context) ([]admin.BlockedKey, error) {
			s, err := one.side(where, "", viewer)
			if err != nil {
				return nil, err
			}
			return s.BlockedKeys(ctx, admin.BlockedFilter{Limit: page + 1})
		})
		one.failures[where] = list(cfg, func(ctx context.Context) ([]admin.Failure, error) {
			s, err := one.side(where, "", viewer)
			if err != nil {
				return nil, err
			}
			return s.Failures(ctx, admin.FailureFilter{Limit: admin.MostGrouped})
		})
		one.audits[where] = list(cfg, func(ctx context.Context) ([]admin.AuditEntry, error) {
			s, err := one.side(where, "", viewer)
			if err != nil {
				return nil, err
			}
			return s.Audit(ctx, 2*page)
		})
	}
	one.scheduled = list(cfg, one.readScheduled)
	one.archive = list(cfg, one.readArchive)
	one.operations = list(cfg, one.unknownOperations)
	one.audits[inKeys] = list(cfg, func(ctx context.Context) ([]admin.AuditEntry, error) {
		o, err := one.idempotency(viewer)
		if err != nil {
			return nil, err
		}
		return o.Audit(ctx, 2*page)
	})
	return one, nil
}

// listed is a list, or the error of its read.
type listed[T any] struct {
	List []T
	Err  error
}

func list[T any](cfg Config, read func(ctx context.Context) ([]T, error)) *shared[listed[T]] {
	return &shared[listed[T]]{
		every: cfg.Refresh, timeout: cfg.Timeout,
		read: func(ctx context.Context) listed[T] {
			rows, err := read(ctx)
			return listed[T]{rows, err}
		},
	}
}

// changed invalidates the cached reads, so that the next request sees the change.
func (d *database) changed() {
	d.state.changed()
	d.findings.changed()
	d.topics.changed()
	d.operations.changed()
	d.scheduled.changed()
	d.archive.changed()
	d.relays.changed()
	for _, where := range sides {
		d.keys[where].changed()
		d.failures[where].changed()
	}
	for _, a := range d.audits {
		a.changed()
	}
	for _, one := range d.looked() {
		one.changed()
	}
}

// viewer is the operator name for reads, which the audit does not record.
const viewer = "viewer"

// outbox returns an operator of the outbox in a viewer's name.
func (d *database) outbox(name string) (*operator.Operator, error) {
	return operator.New(d.Pool, d.Schema, name)
}

// inbox returns an operator of the inbox in a viewer's name; consumer may be empty.
func (d *database) inbox(consumer, name string) (*inboxoperator.Operator, error) {
	return inboxoperator.New(d.Pool, d.Schema, consumer, name)
}

func (d *database) sample(ctx context.Context) (relay.Sample, error) {
	o, err := relay.Open(d.Pool, d.Schema)
	if err != nil {
		return relay.Sample{}, err
	}
	return o.Sample(ctx)
}

// look reads the state.
func (d *database) look(ctx context.Context) state {
	var st state
	var mayOut, mayIn bool
	sample, err := d.sample(ctx)
	switch {
	case err == nil:
		st.Outbox = &sample
		if o, newErr := d.outbox(viewer); newErr == nil {
			mayOut, err = o.MayChange(ctx)
		}
	case absent(err):
		err = nil
	}
	if err != nil {
		return state{Err: err}
	}
	found, err := inboxoperator.Diagnose(ctx, d.Pool, d.Schema, true)
	switch {
	case err == nil && len(found.MissingRights) == 0:
		st.HasInbox, st.Inbox = true, found.Consumers
		if o, newErr := d.inbox("", viewer); newErr == nil {
			mayIn, err = o.MayChange(ctx)
		}
	case absent(err):
		err = nil
	}
	if err == nil {
		st.Keys, st.MayKeys, err = d.lookAtKeys(ctx)
	}
	if err == nil && st.Outbox == nil && !st.HasInbox && st.Keys == nil {
		err = errNothing
	}
	if err != nil {
		return state{Err: err}
	}
	st.MayChange = mayOut || mayIn
	st.Now = d.remember(st)
	return st
}

var errNothing = errors.New("no tables of effectonce are here, or none that this role may read: " +
	"is the schema right? relay migrate makes them")

// has reports whether the database has a side that the role may read.
func (s state) has(side string) bool {
	return side == inOutbox && s.Outbox != nil || side == inInbox && s.HasInbox || side == inKeys && s.Keys != nil
}

// stateOf returns the state of a database, when it was read, and why there is none.
func (q *request) stateOf(d *database) (st state, at time.Time, why string) {
	st, at = d.state.get(q.Context(), q.left())
	switch {
	case at.IsZero():
		why = "It has not answered yet."
	case st.Err != nil:
		why = away(st.Err)
	}
	return st, at, why
}

// absent reports whether the tables are missing or the role may not read them.
func absent(err error) bool {
	return pgerr.Is(err, pgerr.UndefinedTable) || pgerr.Is(err, "3F000") ||
		pgerr.Is(err, pgerr.InsufficientPrivilege)
}

// client is the caller's Kafka client.
type client struct{ of *kafka.Client }

// Client implements doctor.Kafka. The caller owns the connections.
func (c client) Client(timeout time.Duration) (*kafka.Client, func()) {
	with := *c.of
	with.Timeout = timeout
	return &with, func() {}
}

// Warning implements doctor.Kafka. It is empty: the client's login is unknown.
func (client) Warning() string { return "" }

// LookAt implements doctor.Kafka.
func (client) LookAt() string {
	return "how the program's client of Kafka is set, and whether the brokers run"
}

// subject returns the database as the doctor's subject.
func (d *database) subject(to *kafka.Client, readsOnly bool) doctor.Subject {
	s := doctor.Subject{DB: d.Pool, Schema: d.Schema, ReadsOnly: readsOnly, Flags: d.Flags}
	if to != nil {
		s.Kafka = client{to}
	}
	return s
}

// examine runs the doctor, and asks Kafka for the ends of the partitions.
func (d *database) examine(ctx context.Context, to *kafka.Client) examination {
	st, _ := d.state.get(ctx, d.state.timeout)
	if st.Err != nil {
		return examination{}
	}
	subject := d.subject(to, !st.MayChange)
	x := examination{Findings: doctor.Examine(ctx, subject)}
	if to == nil {
		return x
	}
	x.Ends = map[partition]int64{}
	var partitions []inboxoperator.PartitionState
	for _, c := range st.Inbox {
		partitions = append(partitions, c.Partitions...)
	}
	var ends []int64
	ends, x.EndsErr = doctor.Ends(ctx, subject.Kafka, partitions)
	for i, p := range partitions {
		if ends[i] >= 0 {
			x.Ends[partition{p.Topic, p.Partition}] = ends[i]
		}
	}
	return x
}
