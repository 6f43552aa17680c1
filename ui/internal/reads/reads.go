// Package reads is what the pages read from a database. All viewers share one read. It has no pages and no requests.
package reads

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/admin"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// At is where a database is, and how commands name it.
type At struct {
	Name   string
	Pool   *pgxpool.Pool
	Schema string
	Flags  []string
}

// Config configures the reads of all databases.
type Config struct {
	Refresh, Timeout time.Duration
	Kafka            *kafka.Client // nil: Kafka is not asked
}

// Database is a database with the reads that all viewers share.
type Database struct {
	At
	cfg Config

	State     *Shared[State]
	Moves     *Shared[Movement]
	Findings  *Shared[Examination]
	Topics    *Shared[[]operator.Topic]
	Keys      map[string]*Shared[[]admin.BlockedKey] // by side
	Audits    map[string]*Shared[[]admin.AuditEntry] // by side, and of idempotency keys
	Scheduled *Shared[[]operator.ScheduledEvent]
	Archive   *Shared[[]operator.ArchiveDay]
	Relays    *Shared[operator.Relays]
	Restored  *Shared[[]doctor.Finding] // whether Kafka has newer events than the outbox
	// operations with an unknown outcome: first the stuck ones, then those that recovery still works on.
	Operations *Shared[[]keysoperator.Operation]
	Failures   map[string]*Shared[[]admin.Failure] // by side

	mu      sync.Mutex
	past    past
	details map[string]*Shared[Topic] // by topic, for topics that a viewer has opened
}

// State is the result of a few cheap statements.
type State struct {
	Outbox    *relay.Sample                     // nil: no outbox, or the role may not read it
	Inbox     []inboxoperator.ConsumerDiagnosis // nil: no inbox, or the role may not read it
	HasInbox  bool                              // also without consumers
	MayChange bool                              // the role may change outbox or inbox
	Keys      *keysoperator.Counts              // nil: no idempotency keys, or the role may not read them
	MayKeys   bool                              // the role may change idempotency keys
	Denied    []string                          // the sides that the role may not read, each with the missing grant
}

// Examination is the result of the doctor, and what people know of it.
type Examination struct {
	Findings     []doctor.Finding
	Acknowledged []admin.Acknowledgement
}

// examineEvery bounds the age of the doctor's findings, which cost some dozen statements. restoredEvery is the same for
// the check that reads from Kafka.
const (
	examineEvery  = 10 * time.Second
	restoredEvery = 10 * time.Minute
)

// New opens no connection.
func New(d At, cfg Config, most Limits) (*Database, error) {
	if _, err := operator.New(d.Pool, d.Schema, Viewer); err != nil {
		return nil, fmt.Errorf("ui: database %q: %w", d.Name, err)
	}
	one := &Database{At: d, cfg: cfg}
	one.State = &Shared[State]{every: cfg.Refresh, timeout: cfg.Timeout, read: one.unblocked, slots: most.Looks}
	one.Moves = &Shared[Movement]{every: cfg.Refresh, timeout: 2 * cfg.Timeout, read: one.move}
	one.Findings = &Shared[Examination]{
		every: max(examineEvery, cfg.Refresh), timeout: 2 * cfg.Timeout, slots: most.examinations,
		read: func(ctx context.Context) (Examination, error) {
			st, err := one.state(ctx)
			if err != nil {
				return Examination{}, err
			}
			s := one.Subject(!st.MayChange)
			return Examination{doctor.Examine(ctx, s), doctor.Acknowledged(ctx, s)}, nil
		},
	}
	one.Restored = &Shared[[]doctor.Finding]{
		every: max(restoredEvery, cfg.Refresh), timeout: 2*cfg.Timeout + doctor.TailTimeout,
		slots: most.examinations,
		read: func(ctx context.Context) ([]doctor.Finding, error) {
			if st, _, err := one.State.Get(ctx, cfg.Timeout); err != nil || st.Outbox == nil {
				return nil, err
			}
			return doctor.Restored(ctx, one.Subject(false)), nil
		},
	}
	one.Relays = &Shared[operator.Relays]{every: cfg.Refresh, timeout: cfg.Timeout, read: one.readRelays}
	one.Topics = list(cfg, func(ctx context.Context) ([]operator.Topic, error) {
		o, err := one.Outbox(Viewer)
		if err != nil {
			return nil, err
		}
		return o.Topics(ctx)
	})
	one.Keys = map[string]*Shared[[]admin.BlockedKey]{}
	one.Audits = map[string]*Shared[[]admin.AuditEntry]{}
	one.Failures = map[string]*Shared[[]admin.Failure]{}
	for _, where := range Sides {
		one.Keys[where] = list(cfg, func(ctx context.Context) ([]admin.BlockedKey, error) {
			s, err := one.Side(where, "", Viewer)
			if err != nil {
				return nil, err
			}
			return s.BlockedKeys(ctx, admin.BlockedFilter{Limit: Page + 1})
		})
		one.Failures[where] = list(cfg, func(ctx context.Context) ([]admin.Failure, error) {
			s, err := one.Side(where, "", Viewer)
			if err != nil {
				return nil, err
			}
			return s.Failures(ctx, admin.FailureFilter{Limit: admin.MostGrouped})
		})
		one.Audits[where] = list(cfg, func(ctx context.Context) ([]admin.AuditEntry, error) {
			s, err := one.Side(where, "", Viewer)
			if err != nil {
				return nil, err
			}
			return s.Audit(ctx, 2*Page)
		})
	}
	one.Scheduled = list(cfg, one.readScheduled)
	one.Archive = list(cfg, one.readArchive)
	one.Operations = list(cfg, one.unknownOperations)
	one.Audits[InKeys] = list(cfg, func(ctx context.Context) ([]admin.AuditEntry, error) {
		o, err := one.Idempotency(Viewer)
		if err != nil {
			return nil, err
		}
		return o.Audit(ctx, 2*Page)
	})
	return one, nil
}

// unblocked is look, whose error names the session that has locked the tables.
func (d *Database) unblocked(ctx context.Context) (State, error) {
	st, err := d.look(ctx)
	if who := doctor.Blocked(ctx, d.Pool, d.Schema, err); who != "" {
		err = &blockedError{who, err}
	}
	return st, err
}

func list[T any](cfg Config, read func(ctx context.Context) ([]T, error)) *Shared[[]T] {
	return &Shared[[]T]{every: cfg.Refresh, timeout: cfg.Timeout, read: read}
}

// all returns the reads of what a change may change.
func (d *Database) all() []read {
	list := []read{d.Findings, d.Moves, d.State, d.Topics, d.Operations, d.Scheduled, d.Archive, d.Relays}
	for _, where := range Sides {
		list = append(list, d.Keys[where], d.Failures[where])
	}
	for _, a := range d.Audits {
		list = append(list, a)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.details {
		list = append(list, one)
	}
	return list
}

// Changed invalidates the cached reads, so that the next request sees the change.
func (d *Database) Changed() {
	for _, one := range d.all() {
		one.Changed()
	}
}

// Settle waits for the reads that are under way, until ctx ends.
func (d *Database) Settle(ctx context.Context) {
	d.Restored.settle(ctx) // it reads the state, and so do the findings
	for _, one := range d.all() {
		one.settle(ctx)
	}
}

// Viewer is the operator name for reads, which the audit does not record.
const Viewer = "viewer"

// Outbox returns an operator of the outbox in a viewer's name.
func (d *Database) Outbox(name string) (*operator.Operator, error) {
	return operator.New(d.Pool, d.Schema, name)
}

// Inbox returns an operator of the inbox in a viewer's name; consumer may be empty.
func (d *Database) Inbox(consumer, name string) (*inboxoperator.Operator, error) {
	return inboxoperator.New(d.Pool, d.Schema, consumer, name)
}

func (d *Database) sample(ctx context.Context) (relay.Sample, error) {
	o, err := relay.Open(d.Pool, d.Schema)
	if err != nil {
		return relay.Sample{}, err
	}
	return o.Sample(ctx)
}

// state is State for reads that build on it. One that was changed while it was read is good enough for them: they are
// read again as well.
func (d *Database) state(ctx context.Context) (State, error) {
	began := time.Now()
	st, at, err := d.State.Get(ctx, d.State.timeout)
	if _, unknown := errors.AsType[*UnknownError](err); unknown && !at.Before(began) {
		return st, nil
	}
	return st, err
}

// look reads the state.
func (d *Database) look(ctx context.Context) (st State, err error) {
	var mayOut, mayIn bool
	sample, err := d.sample(ctx)
	switch {
	case err == nil:
		st.Outbox = &sample
		if o, newErr := d.Outbox(Viewer); newErr == nil {
			mayOut, err = o.MayChange(ctx)
		}
	default:
		err = st.without(InOutbox, err)
	}
	if err != nil {
		return State{}, err
	}
	found, err := inboxoperator.Diagnose(ctx, d.Pool, d.Schema, true)
	switch {
	case len(found.MissingRights) > 0:
		st.Denied = append(st.Denied, "inbox: this role lacks "+strings.Join(found.MissingRights, ", ")+": grant that")
	case err == nil:
		st.HasInbox, st.Inbox = true, found.Consumers
		if o, newErr := d.Inbox("", Viewer); newErr == nil {
			mayIn, err = o.MayChange(ctx)
		}
	default:
		err = st.without(InInbox, err)
	}
	if err == nil {
		st.Keys, st.MayKeys, err = d.lookAtKeys(ctx)
		err = st.without(InKeys, err)
	}
	if err == nil && st.Outbox == nil && !st.HasInbox && st.Keys == nil {
		if err = errNothing; len(st.Denied) > 0 {
			err = errors.New(strings.Join(st.Denied, "; "))
		}
	}
	if err != nil {
		return State{}, err
	}
	st.MayChange = mayOut || mayIn
	return st, nil
}

// without notes that the role may not read a side. It returns every error but that, and that of a side that is absent.
func (s *State) without(side string, err error) error {
	if denied := pgerr.Denied(err); denied != "" {
		s.Denied = append(s.Denied, side+": "+denied)
		return nil
	}
	if pgerr.Absent(err) {
		return nil
	}
	return err
}

var errNothing = errors.New("no tables of effectonce are here: is the schema right? relay migrate makes them")

// Has reports whether the database has a side that the role may read.
func (s State) Has(side string) bool {
	return side == InOutbox && s.Outbox != nil || side == InInbox && s.HasInbox || side == InKeys && s.Keys != nil
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

// Brokers returns the addresses of Kafka, for its own tools; "": unknown.
func (d *Database) Brokers() string { return doctor.Addresses(d.cfg.Kafka) }

// Subject returns the database as the doctor's subject.
func (d *Database) Subject(readsOnly bool) doctor.Subject {
	s := doctor.Subject{DB: d.Pool, Schema: d.Schema, ReadsOnly: readsOnly, Flags: d.Flags}
	if d.cfg.Kafka != nil {
		s.Kafka = client{d.cfg.Kafka}
	}
	return s
}

// readArchive reads the days, for viewers without a Scope.
func (d *Database) readArchive(ctx context.Context) ([]operator.ArchiveDay, error) {
	o, err := d.Outbox(Viewer)
	if err != nil {
		return nil, err
	}
	return o.Archive(ctx)
}

// readScheduled reads the list for viewers without a Scope.
func (d *Database) readScheduled(ctx context.Context) ([]operator.ScheduledEvent, error) {
	o, err := d.Outbox(Viewer)
	if err != nil {
		return nil, err
	}
	return o.Scheduled(ctx, operator.ScheduledFilter{Limit: Page + 1})
}

func (d *Database) readRelays(ctx context.Context) (operator.Relays, error) {
	return operator.ReadRelays(ctx, d.Pool, d.Schema)
}

// Address returns the database's host, port and name, without the user.
func (d *Database) Address() string {
	c := d.Pool.Config().ConnConfig
	at := c.Host
	if !strings.HasPrefix(at, "/") { // a socket
		at = net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	}
	if d.Schema != "" {
		return at + " " + c.Database + ", schema " + d.Schema
	}
	return at + " " + c.Database
}
