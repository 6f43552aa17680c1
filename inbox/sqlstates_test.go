package inbox_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// codesThatTheInboxKnows are SQLSTATEs that its code compares with, or that belong to a class that it does.
var codesThatTheInboxKnows = []string{
	"08P01", "08006", "22012", "23505", "23514", "25006", "25P03", "25P04", "40001", "40003", "40P01", "42P01", "42501",
	"53100", "53200", "53300", "53400", "55000", "55P03", "57014", "57P01", "57P03",
}

// side is how many cells run side by side.
const side = 24

// manyInboxes are inboxes of their own consumers, side by side over one database.
type manyInboxes struct {
	*world
	pool   *pgxpool.Pool
	faults *pgtest.Faults
	wg     sync.WaitGroup
	slots  chan struct{}

	mu    sync.Mutex
	n     int
	table map[string][]string // codes by place and outcome
}

func newManyInboxes(t *testing.T) *manyInboxes {
	w := newWorld(t)
	w.Exec(t, "create index on effect (what)")
	handle(t, w.inbox(inbox.Config{}).Each(write), some(1)) // makes the days
	w.Exec(t, "delete from effect")
	cfg := w.Pool.Config()
	cfg.MaxConns = 3 * side
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &manyInboxes{
		world: w, pool: pool, faults: pgtest.NewFaults(t, w.DB), slots: make(chan struct{}, side),
		table: map[string][]string{},
	}
}

// cell runs one cell beside others. do gets a name for its consumer, which has no code in it, and returns the outcome.
func (m *manyInboxes) cell(at, code string, do func(name string) (outcome string, err error)) {
	m.slots <- struct{}{}
	m.n++
	name := fmt.Sprint("consumer ", m.n, " ")
	m.wg.Go(func() {
		defer func() { <-m.slots }()
		outcome, err := do(name)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.table[at+": "+outcome] = append(m.table[at+": "+outcome], code)
		if err != nil {
			m.t.Errorf("%s: %s: %s: %v", at, code, outcome, err)
		}
	})
}

// print waits for the cells and logs the table of outcomes.
func (m *manyInboxes) print() {
	m.wg.Wait()
	for _, outcome := range slices.Sorted(maps.Keys(m.table)) {
		codes := m.table[outcome]
		slices.Sort(codes)
		m.t.Logf("%s: %d: %s", outcome, len(codes), strings.Join(codes, " "))
	}
	m.t.Logf("%d cells", m.n)
}

// told is what an inbox says about its work.
type told struct {
	mu      sync.Mutex
	reasons []string
	retries []inbox.RetriedInfo
	text    bytes.Buffer
}

func (t *told) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *told) log() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

func (t *told) config(cfg inbox.Config) inbox.Config {
	cfg = small(cfg)
	cfg.Logger = slog.New(slog.NewTextHandler(t, nil))
	cfg.Observer.Retried = func(r inbox.RetriedInfo) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.retries = append(t.retries, r)
		if len(t.reasons) == 0 || t.reasons[len(t.reasons)-1] != r.Reason {
			t.reasons = append(t.reasons, r.Reason)
		}
	}
	return cfg
}

// outage says whether the database was called away.
func (t *told) outage() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Contains(t.text.String(), "does not answer") || slices.Contains(t.reasons, "away")
}

// retried returns why transactions run again that failed with a SQLSTATE, once they have done so often enough.
func (t *told) retried(code string) (reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	times := 0
	for _, r := range t.retries {
		if strings.Contains(r.Err.Error(), code) {
			times++
			reason = r.Reason
		}
	}
	if times < 3 {
		return ""
	}
	return reason
}

// has reports whether anything of a SQLSTATE was said.
func (t *told) has(code string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Contains(t.text.String(), code) || slices.ContainsFunc(t.retries, func(r inbox.RetriedInfo) bool {
		return strings.Contains(r.Err.Error(), code)
	})
}

func (t *told) way(end string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(append(slices.Clone(t.reasons), end), ", ")
}

// keysOf returns events of different keys and one type, which effects write.
func keysOf(n int, what string) []event.Event {
	events := some(n)
	for i := range events {
		events[i].Key, events[i].Type = fmt.Sprint("key ", i), what
	}
	return events
}

// TestSQLStatesOfEffects: each SQLSTATE of the server, raised for ever by a statement of one event's effect or at its
// COMMIT. Within a bounded time that event is parked with the reason, those of other keys are applied, and nothing is
// called an outage: the database serves all other sessions.
func TestSQLStatesOfEffects(t *testing.T) {
	t.Parallel()
	m := newManyInboxes(t)
	handlers := map[string]func(*inbox.Inbox) inbox.Handler{
		"each":  func(in *inbox.Inbox) inbox.Handler { return in.Each(write) },
		"batch": func(in *inbox.Inbox) inbox.Handler { return in.Batch(writeTypes) },
	}
	for _, code := range pgtest.SomeCodes(t, m.DB, codesThatTheInboxKnows...) {
		for _, at := range []string{"", pgtest.AtCommit} {
			for how, handler := range handlers {
				m.cell(how+", "+cmp.Or(at, "a statement"), code, func(name string) (string, error) {
					return m.effectFails(name, code, at, handler)
				})
			}
		}
	}
	m.print()
}

func writeTypes(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	for _, e := range events {
		if err := write(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

func (m *manyInboxes) effectFails(name, code, at string, handler func(*inbox.Inbox) inbox.Handler) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 20*time.Second)
	defer cancel()
	events := keysOf(4, name)
	said := &told{}
	in := newInbox(m.t, m.pool, name, said.config(inbox.Config{MaxAttempts: 2, MaxRetryFor: time.Millisecond}))
	lift := m.faults.Raise(m.t, pgtest.Fault{
		Place: pgtest.Place{Table: "effect", Op: "INSERT", Statement: at}, Field: "id", Value: events[1].ID.String(),
	}, code)
	defer lift()
	h := handler(in)
	out, err := h.Handle(ctx, events)
	if err != nil {
		return said.way("no end"), err
	}
	outcome := said.way(out[1].String())
	if said.outage() {
		return outcome, fmt.Errorf("called an outage: %s", said.log())
	}
	want := []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied, inbox.Applied}
	if !slices.Equal(out, want) {
		return outcome, fmt.Errorf("outcomes %v", out)
	}
	var applied int
	var reason string
	err = m.Pool.QueryRow(ctx, "select (select count(*) from effect where what = $1 and id <> $2), reason "+
		"from inbox_parked where consumer_name = $1 and message_id = $2", name, events[1].ID.String()).
		Scan(&applied, &reason)
	if err != nil || applied != 3 || !strings.Contains(reason, code) {
		return outcome, fmt.Errorf("%d effects of others, reason %q: %w", applied, reason, err)
	}
	return outcome, nil
}

// scene is a consumer with work that makes an inbox write to each of its tables: two topics, in one of which an earlier
// process left a range, one event fails until it is mended, and others wait behind it or are too old.
type scene struct {
	m             *manyInboxes
	name          string
	said          *told
	in            *inbox.Inbox
	h             inbox.Handler
	mended        atomic.Bool
	faulty, other []event.Event
}

func (m *manyInboxes) scene(name string, dedup inbox.Dedup) *scene {
	s := &scene{m: m, name: name, said: &told{}, faulty: some(5), other: some(2)}
	for i := range s.faulty {
		s.faulty[i].Topic, s.faulty[i].Type, s.faulty[i].Key = name, name, []string{"a", "b", "b", "c", "d"}[i]
	}
	for i := range s.other {
		s.other[i].Topic, s.other[i].Type = name+" other", name
	}
	s.faulty[2].ID = uuid.New()
	s.faulty[4].ID = idAt(time.Now().Add(-72 * time.Hour))
	s.in = newInbox(m.t, m.pool, name, s.said.config(inbox.Config{
		MaxAttempts: 2, MaxRetryFor: time.Millisecond, ReleaseEvery: 20 * time.Millisecond, Dedup: dedup,
		MaintainEvery: -1,
	}))
	s.h = s.in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.ID == s.faulty[1].ID && !s.mended.Load() {
			return outcome.Terminal("bad", errBad)
		}
		return write(ctx, tx, e)
	})
	return s
}

// fault is the class of this scene's rows in a place.
func (s *scene) fault(at pgtest.Place) pgtest.Fault {
	switch at.Table {
	case "inbox_message":
		return pgtest.Fault{Place: at, Field: "message_id", Value: s.faulty[1].ID.String()}
	case "inbox_message_any":
		return pgtest.Fault{Place: at, Field: "message_id", Value: s.faulty[2].ID.String()}
	case "inbox_consumer", "inbox_audit", "inbox_numbering":
		return pgtest.Fault{Place: at, Field: "consumer_name", Value: s.name}
	}
	if at == (pgtest.Place{Table: "inbox_progress", Op: "INSERT", Statement: pgtest.AtCommit}) {
		return pgtest.Fault{Place: at, Field: "topic", Value: s.other[0].Topic} // the other has a row
	}
	return pgtest.Fault{Place: at, Field: "topic", Value: s.name}
}

// play does all the work; beside says that the fault is none of the other topic's. seen is called while something does
// not go on, until it returns true: then the fault has been noticed and lifted.
func (s *scene) play(ctx context.Context, beside bool, seen func(err error) bool) error {
	ctx, end := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer end()
	background.Go(func() { _ = s.in.Run(ctx) })
	otherDone := make(chan error, 1)
	if beside {
		background.Go(func() { otherDone <- s.handle(ctx, s.other) })
	}
	if err := s.until(ctx, seen, func() error { return s.handle(ctx, s.faulty) }); err != nil {
		return fmt.Errorf("the faulty partition: %w", err)
	}
	if !beside {
		otherDone <- s.until(ctx, seen, func() error { return s.handle(ctx, s.other) })
	}
	select {
	case err := <-otherDone:
		if err != nil {
			return fmt.Errorf("another partition: %w", err)
		}
	case <-ctx.Done():
		return errors.New("another partition does not go on")
	}
	return s.release(ctx, seen)
}

func (s *scene) handle(ctx context.Context, events []event.Event) error {
	s.h.(interface {
		Assigned(topic string, partition int32)
	}).Assigned(events[0].Topic, events[0].Position.Partition)
	_, err := s.h.Handle(ctx, events)
	return err
}

// until calls do again after its errors, once the fault is lifted.
func (s *scene) until(ctx context.Context, seen func(err error) bool, do func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for tries := 1; ; tries++ {
		done := make(chan error, 1)
		go func() { done <- do() }()
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-done:
				waiting = false
			case <-tick.C:
				seen(nil)
			}
		}
		if err == nil || tries == 3 || ctx.Err() != nil || !seen(err) {
			return err
		}
	}
}

// release has an operator release what is parked until it is applied: a refused COMMIT may be that of any event in it.
func (s *scene) release(ctx context.Context, seen func(err error) bool) error {
	s.mended.Store(true)
	o, err := operator.New(s.m.pool, s.m.Schema, s.name, "ada")
	if err != nil {
		return err
	}
	err = s.until(ctx, seen, func() error {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			parked, err := o.Parked(ctx, admin.ParkedFilter{Limit: 10})
			if err == nil && len(parked) == 0 {
				var marks int
				err = s.m.pool.QueryRow(ctx, "select count(*) from inbox_parked_key where consumer_name = $1", s.name).
					Scan(&marks)
				if marks == 0 {
					return err
				}
			}
			if err != nil {
				return err
			}
			for _, p := range parked {
				switch {
				case p.Releasing:
				case p.Kind == "quarantined":
					err = o.ReleaseEvent(ctx, p.ID, "mended")
				default:
					_, err = o.ReleaseKey(ctx, p.Tenant, p.Topic, p.Key, admin.Seen{}, "mended")
				}
				if err != nil && !errors.Is(err, admin.ErrNotParked) {
					return err
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%d events are still parked: %w", len(parked), ctx.Err())
			}
		}
	})
	if err != nil {
		return fmt.Errorf("releasing: %w", err)
	}
	s.h.(interface {
		Revoked(ctx context.Context, topic string, partition int32)
	}).Revoked(ctx, s.name, s.faulty[0].Position.Partition)
	return s.until(ctx, seen, func() error { return s.handle(ctx, s.faulty) })
}

// check looks for one effect of each event, and for what should be over.
func (s *scene) check(ctx context.Context) error {
	var effects, events, halted int
	err := s.m.pool.QueryRow(ctx, "select count(*), count(distinct id), (select count(*) from inbox_progress "+
		"where consumer_name = $1 and halted_at is not null) from effect where what = $1", s.name).
		Scan(&effects, &events, &halted)
	if want := len(s.faulty) + len(s.other); err != nil || effects != want || events != want || halted > 0 {
		return fmt.Errorf("%d effects of %d events, want %d; %d partitions halted: %w", effects, events, want, halted,
			err)
	}
	return nil
}

// leaveRange is what a process that died has left.
func (s *scene) leaveRange() {
	s.m.Exec(s.m.t, "insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset) "+
		"values ($1, $1, $2, 0, 2)", s.name, s.faulty[0].Position.Partition)
}

// TestSQLStatesOfStatements: each SQLSTATE of the server, raised by a trigger under each statement of the inbox and of
// its operators, and at its COMMIT, for the rows of one partition. The other partition goes on, the error is named, and
// nothing is called an outage; once the trigger is gone, each event has one effect.
func TestSQLStatesOfStatements(t *testing.T) {
	t.Parallel()
	m := newManyInboxes(t)
	hand := pgtest.DealCodes(t, m.DB, draw.Size(1, 7), draw.Size(2, len(codesThatTheInboxKnows)),
		codesThatTheInboxKnows)
	for _, dedup := range []inbox.Dedup{inbox.ByID, inbox.ByOffset} {
		s := m.scene("recorded "+dedup.String(), dedup)
		s.leaveRange()
		places := m.faults.Record(t)
		if err := s.play(t.Context(), true, func(error) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if err := s.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, at := range places() {
			if at.Table == "effect" || (dedup == inbox.ByOffset) != (at.Table == "inbox_watermark") {
				continue
			}
			for _, code := range hand() {
				m.cell(at.String(), code, func(name string) (string, error) {
					return m.statementFails(name, at, code, dedup)
				})
			}
		}
	}
	m.print()
}

func (m *manyInboxes) statementFails(name string, at pgtest.Place, code string, dedup inbox.Dedup) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 30*time.Second)
	defer cancel()
	s := m.scene(name, dedup)
	s.leaveRange()
	lift, lifted, outcome, polls := m.faults.Raise(m.t, s.fault(at), code), false, "not reached", 0
	code = "(SQLSTATE " + code + ")"
	defer func() {
		if !lifted {
			lift()
		}
	}()
	seen := func(err error) bool {
		if lifted {
			return true
		}
		switch retried := s.said.retried(code); {
		case err != nil && strings.Contains(err.Error(), code):
			outcome = "an error"
		case retried != "":
			outcome = retried
		case strings.Contains(s.said.log(), code):
			if polls++; polls < 10 { // the transaction may run again
				return false
			}
			outcome = "logged"
		default:
			return false
		}
		lift()
		lifted = true
		return true
	}
	beside := at.Table != "inbox_consumer" && s.fault(at).Value != s.other[0].Topic
	err := s.play(ctx, beside, seen)
	if err == nil {
		err = s.check(ctx)
	}
	if err == nil && !lifted {
		switch outcome = "it goes on without"; {
		case s.said.has(code):
		case strings.Contains(at.String(), "count the releases of a key anew"):
			outcome = "not reached" // its rows are those of counted runs, which may have been decided before
		default:
			err = errors.New("nothing was said")
		}
	}
	if err == nil && s.said.outage() && !strings.Contains(code, "25006") && !strings.Contains(code, "55000") {
		err = errors.New("called an outage")
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.said.log())
	}
	return outcome, err
}
