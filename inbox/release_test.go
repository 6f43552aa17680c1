package inbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

func (w *world) operator() *operator.Operator {
	w.t.Helper()
	o, err := operator.New(w.Pool, w.Schema, "ledger", "ada")
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// TestP9_6_ReleasedKeyIsLoggedOnce: a released key is logged in one line, not in one per event.
func TestP9_6_ReleasedKeyIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a", "a", "a")
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}}
	var said bytes.Buffer
	in := w.inbox(quick(inbox.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}))
	same(t, "outcomes", handle(t, in.Each(s.effect), e), repeat(inbox.Parked, 5))
	s.mended.Store(true)
	w.releaseKey("a", 5)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(said.String(), "level=INFO msg=\"inbox: released event"); n != 1 ||
		!strings.Contains(said.String(), "events=5") ||
		strings.Contains(said.String(), "a released event is decided") {
		t.Errorf("%d lines, want one for five events:\n%s", n, said.String())
	}
}

// releaseKey releases a key of the topic payments and checks the number of its events.
func (w *world) releaseKey(key string, want int64) {
	w.t.Helper()
	n, err := w.operator().ReleaseKey(w.t.Context(), "", "payments", key, admin.Seen{}, "mended")
	if err != nil || n != want {
		w.t.Fatalf("%d events released, want %d: %v", n, want, err)
	}
}

// runs starts Inbox.Run until the test ends.
func runs(t *testing.T, in *inbox.Inbox) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestMissingRunIsSaid: a program that handles events and has forgotten Inbox.Run is told so, once.
func TestMissingRunIsSaid(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"forgotten": false, "called": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var said syncBuilder
			in := w.inbox(inbox.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
			h, e := in.Each(write), some(4)
			handle(t, h, e[:1])
			if running {
				runs(t, in)
				pgtest.Await(t, "Run to begin", func() (bool, error) { return inbox.Runs(in), nil })
			}
			handle(t, h, e[1:2])
			inbox.PreparedLongAgo(in)
			handle(t, h, e[2:3])
			handle(t, h, e[3:])
			want := 1
			if running {
				want = 0
			}
			if n := strings.Count(said.String(), "Inbox.Run was not called"); n != want {
				t.Errorf("%d lines, want %d:\n%s", n, want, said.String())
			}
		})
	}
}

// quick sets a short ReleaseEvery.
func quick(cfg inbox.Config) inbox.Config {
	cfg.ReleaseEvery = 2 * time.Millisecond
	return cfg
}

// switchable is an effect that fails for some events until mended is set.
type switchable struct {
	mended atomic.Bool
	mu     sync.Mutex
	bad    map[uuid.UUID]error
}

func (s *switchable) effect(ctx context.Context, tx pgx.Tx, e event.Event) error {
	s.mu.Lock()
	err := s.bad[e.ID]
	s.mu.Unlock()
	if err != nil && !s.mended.Load() {
		return errors.Join(write(ctx, tx, e), err)
	}
	return write(ctx, tx, e)
}

// TestP9_6_ReleaseInOrder: a released key runs in the order of the log. An event that arrives meanwhile runs after it.
// The key's mark is removed once its list is empty.
func TestP9_6_ReleaseInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "b", "a", "a")
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}}
	in := w.inbox(quick(inbox.Config{}))
	var late sync.Once
	more := keyed("a")
	h := in.Each(s.effect)
	// During the release another event of the key arrives in another process.
	other := w.inbox(inbox.Config{}).Each(write)
	arrived := make(chan inbox.Outcome, 1)
	in2 := w.inbox(quick(inbox.Config{Observer: inbox.Observer{Released: func(r inbox.ReleasedInfo) {
		late.Do(func() {
			out, err := other.Handle(context.Background(), more)
			if err != nil {
				t.Error(err)
			}
			arrived <- out[0]
		})
	}}}))
	in2.Each(s.effect)
	same(t, "outcomes", handle(t, h, e), []inbox.Outcome{
		inbox.Parked, inbox.Parked, inbox.Applied, inbox.Parked,
		inbox.Parked,
	})
	s.mended.Store(true)
	w.releaseKey("a", 4)
	runs(t, in2)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	if o := <-arrived; o != inbox.Parked && o != inbox.Applied {
		t.Errorf("the event that arrived late is %v", o)
	}
	same(t, "effects", w.effects(), []uuid.UUID{e[2].ID, e[0].ID, e[1].ID, e[3].ID, e[4].ID, more[0].ID})
	same(t, "again", handle(t, h, append(e, more...)), repeat(inbox.Duplicate, 6))
	if len(w.parked()) != 0 {
		t.Error(w.parked())
	}
	if days, _ := w.rows(); days != 6 {
		t.Errorf("%d ids recorded", days)
	}
}

// TestP9_6_ReleaseFailsAgain: a released event that fails again parks its key again, with the events after it. The
// events before it stay applied.
func TestP9_6_ReleaseFailsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a")
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: outcome.Terminal("x", errBad)}}
	told := make(chan inbox.ReleasedInfo, 10)
	in := w.inbox(quick(inbox.Config{Observer: inbox.Observer{Released: func(r inbox.ReleasedInfo) { told <- r }}}))
	handle(t, in.Each(s.effect), e)
	s.mu.Lock()
	s.bad = map[uuid.UUID]error{e[1].ID: outcome.Terminal("y", errBad)}
	s.mu.Unlock()
	w.releaseKey("a", 3)
	runs(t, in)
	if r := <-told; r.Event.ID != e[0].ID || r.Outcome != inbox.Applied || r.Event.Key != "" {
		t.Errorf("%+v", r)
	}
	if r := <-told; r.Event.ID != e[1].ID || r.Outcome != inbox.Parked || !errors.Is(r.Err, errBad) {
		t.Errorf("%+v", r)
	}
	pgtest.AwaitSQL(t, w.DB, "select state = 'parked' and code = 'y' from inbox_parked_key")
	same(t, "parked", w.parked(), []string{"failed y " + e[1].ID.String(), "behind  " + e[2].ID.String()})
	same(t, "effects", w.effects(), []uuid.UUID{e[0].ID})
	s.mended.Store(true)
	w.releaseKey("a", 2)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "effects", w.effects(), ids(e))
}

// TestP9_6_ReleaseEndsItsSession: the session of a released event ends at each of its COMMITs, while the database
// answers others: it is parked again.
func TestP9_6_ReleaseEndsItsSession(t *testing.T) {
	t.Parallel()
	w, e := newWorld(t), keyed("a")
	w.endsAtCommit(t)
	first, told := true, make(chan inbox.ReleasedInfo, 1)
	in := w.inbox(quick(inbox.Config{
		MaxAttempts: 2, Observer: inbox.Observer{Released: func(r inbox.ReleasedInfo) { told <- r }},
	}))
	handle(t, in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if first {
			first = false
			return outcome.Terminal("x", errBad)
		}
		_, err := tx.Exec(ctx, "insert into ending values ($1)", e.ID.String())
		return err
	}), e)
	w.releaseKey("a", 1)
	runs(t, in)
	if r := <-told; r.Outcome != inbox.Parked || !strings.Contains(r.Err.Error(), "database answers others") {
		t.Errorf("%+v", r)
	}
}

// TestP9_6_ReleaseAlone: an event that is parked alone can be released by itself, one in its key's list cannot.
func TestP9_6_ReleaseAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("", "a", "a")
	bad := outcome.Terminal("x", errBad)
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: bad, e[1].ID: bad}}
	in := w.inbox(quick(inbox.Config{}))
	handle(t, in.Each(s.effect), e)
	s.mended.Store(true)
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 3 || !list[0].Alone || list[1].Alone {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := o.ReleaseEvent(t.Context(), list[2].ID, "x"); err == nil ||
		!strings.Contains(err.Error(), "list of its key") {
		t.Error(err)
	}
	if err := o.ReleaseEvent(t.Context(), list[0].ID, "mended"); err != nil {
		t.Fatal(err)
	}
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 2 from inbox_parked")
	same(t, "effects", w.effects(), []uuid.UUID{e[0].ID})
	if err := o.ReleaseEvent(t.Context(), list[0].ID, "again"); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
}

// TestP9_6_TwoReleasers: two processes release the same keys and a third handles their duplicates. Each event is
// applied once, in order.
func TestP9_6_TwoReleasers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var keys []string
	for range 15 {
		keys = append(keys, "a", "b", "c")
	}
	e := keyed(keys...)
	bad := outcome.Terminal("x", errBad)
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: bad, e[1].ID: bad, e[2].ID: bad}}
	same(t, "outcomes", handle(t, w.inbox(inbox.Config{}).Each(s.effect), e), repeat(inbox.Parked, len(e)))
	s.mended.Store(true)
	for _, k := range []string{"a", "b", "c"} {
		w.releaseKey(k, 15)
	}
	for range 2 {
		in := w.inbox(quick(inbox.Config{LockTimeout: 50 * time.Millisecond}))
		in.Each(s.effect)
		runs(t, in)
	}
	again := w.inbox(inbox.Config{LockTimeout: 50 * time.Millisecond}).Each(s.effect)
	for range 5 {
		for _, o := range handle(t, again, e) {
			if o != inbox.Duplicate {
				t.Errorf("a duplicate of a released event is %v", o)
			}
		}
	}
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	byKey := map[string][]uuid.UUID{}
	for _, id := range w.effects() {
		for i := range e {
			if e[i].ID == id {
				byKey[e[i].Key] = append(byKey[e[i].Key], id)
			}
		}
	}
	for k := range 3 {
		var want []uuid.UUID
		for i := k; i < len(e); i += 3 {
			want = append(want, e[i].ID)
		}
		same(t, "key "+e[k].Key, byKey[e[k].Key], want)
	}
}

// TestP9_6_Discard: a discarded event is a duplicate from then on. After a discard of the head the rest of the list can
// be released; a discard of the key discards the whole list.
func TestP9_6_Discard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a", "b", "b", "")
	e[5].ID = uuid.New()
	bad := outcome.Terminal("x", errBad)
	in := w.inbox(quick(inbox.Config{}))
	h := in.Each(failing(map[uuid.UUID]error{e[0].ID: bad, e[3].ID: bad, e[5].ID: bad}))
	same(t, "outcomes", handle(t, h, e), repeat(inbox.Parked, 6))
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{Kind: "failed"})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, i := range []int{0, 2} {
		if d, err := o.DiscardEvent(t.Context(), list[i].ID, "never to be applied"); err != nil || d.Events != 1 {
			t.Fatal(d, err)
		}
	}
	if d, err := o.DiscardKey(t.Context(), "", "payments", "b", admin.Seen{},
		"all wrong"); err != nil || d.Events != 2 {
		t.Fatal(d, err)
	}
	if _, err := o.DiscardKey(t.Context(), "", "payments", "b", admin.Seen{},
		"again"); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
	w.releaseKey("a", 2)
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
	same(t, "effects", w.effects(), ids(e[1:3]))
	same(t, "again", handle(t, h, e), repeat(inbox.Duplicate, 6))
	if n := pgtest.One[int](t, w.DB,
		`select count(*) from (select * from inbox_message union all select * from inbox_message_any) m
		where status = 'discarded' and error_code = 'x'`); n != 3 {
		t.Errorf("%d ids are recorded as discarded with their code, want 3: the event behind has no code", n)
	}
	log, err := o.Audit(t.Context(), 100)
	if err != nil || len(log) != 6 || log[5].Operator != "ada" || log[5].Reason != "never to be applied" ||
		*log[5].MessageID != e[0].ID {
		t.Errorf("audit %+v, %v", log, err)
	}
}

// TestP9_6_Edit: an event is edited and released. The audit keeps the original record.
func TestP9_6_Edit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a")
	e[0].Payload, e[0].Headers = []byte("bad"), map[string]string{"own": "1", "other": "2"}
	in := w.inbox(quick(inbox.Config{}))
	got := make(chan event.Event, 1)
	handle(t, in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if string(e.Payload) == "bad" {
			return outcome.Terminal("x", errBad)
		}
		got <- e
		return write(ctx, tx, e)
	}), e)
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{MessageID: e[0].ID})
	if err != nil || len(list) != 1 || list[0].Bytes != 3 || list[0].Payload != nil || list[0].Headers != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	whole, err := o.ParkedEvent(t.Context(), list[0].ID)
	if err != nil || string(whole.Payload) != "bad" || len(whole.Headers) == 0 {
		t.Fatalf("%+v, %v", whole, err)
	}
	payload, headers := []byte("good"), map[string]string{"own": "3"}
	if err := o.EditParked(t.Context(), list[0].ID,
		admin.Edit{Payload: &payload, Headers: &map[string]string{"ce_id": "x"}}, "x"); err == nil {
		t.Error("a header of the codec was edited")
	}
	if err := o.EditParked(t.Context(), list[0].ID, admin.Edit{Payload: &payload, Headers: &headers},
		""); err == nil {
		t.Error("edited without a reason")
	}
	seen, err := o.RevealParked(t.Context(), list[0].ID, "a customer asks")
	if err != nil || string(seen.Payload) != "bad" || len(seen.Headers) == 0 {
		t.Fatalf("%+v, %v", seen, err)
	}
	sum := sha256.Sum256(seen.Payload)
	edit := admin.Edit{Payload: &payload, Headers: &headers, Before: &sum}
	if err := o.EditParked(t.Context(), list[0].ID, edit, "a typo"); err != nil {
		t.Fatal(err)
	}
	if err := o.EditParked(t.Context(), list[0].ID, edit, "a typo"); !errors.Is(err, admin.ErrEdited) {
		t.Errorf("an edit of content that was not revealed: %v", err)
	}
	if log, err := o.Audit(t.Context(), 10); err != nil || len(log) != 2 || log[1].Action != "reveal parked" {
		t.Errorf("%+v, %v", log, err)
	}
	w.releaseKey("a", 1)
	if err := o.EditParked(t.Context(), list[0].ID, admin.Edit{Payload: &payload}, "late"); !errors.Is(err,
		admin.ErrReleasing) {
		t.Error(err)
	}
	runs(t, in)
	mended := <-got
	if mended.ID != e[0].ID || mended.Type != e[0].Type || string(mended.Payload) != "good" ||
		len(mended.Headers) != 1 || mended.Headers["own"] != "3" {
		t.Errorf("%+v", mended)
	}
	if before := pgtest.One[string](t, w.DB, "select convert_from(record_value, 'utf8') from inbox_audit where "+
		"action = 'edit parked'"); before != "bad" {
		t.Errorf("the audit has the payload %q", before)
	}
}

// TestP9_6_EditKeepsTheEvent: a CloudEvent in the structured mode is parked. An edit that takes its type away, as its
// data alone would, is refused; the whole CloudEvent with other data is not, nor is one that mends a broken one.
func TestP9_6_EditKeepsTheEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	record := func(n int64, value string) event.Event {
		rec := event.Record{
			Topic: "orders", Offset: n, Key: []byte("a"), Value: []byte(value),
			Headers: []event.Header{{Key: event.HeaderContentType, Value: []byte("application/cloudevents+json")}},
		}
		e := event.Decode(&rec, "")
		e.Raw = rec.Encode()
		return e
	}
	whole := func(kind, data string) string {
		return `{"specversion":"1.0","id":"4","source":"s","type":"` + kind + `","data":` + data + `}`
	}
	in := w.inbox(quick(inbox.Config{}))
	got := make(chan string, 2)
	handle(t, in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if string(e.Payload) != "2" {
			return outcome.Terminal("x", errBad)
		}
		got <- e.Type
		return write(ctx, tx, e)
	}), []event.Event{record(0, whole("Paid", "1")), record(1, "{")})
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	plain, none := "application/json", []byte(nil)
	for _, edit := range []admin.Edit{
		{Payload: new([]byte("2"))},
		{Payload: &none},
		{ContentType: &plain},
		{Payload: new([]byte(whole("Sold", "2")))},
	} {
		if err := o.EditParked(t.Context(), list[0].ID, edit, "x"); !errors.Is(err, operator.ErrAnother) {
			t.Fatalf("%+v makes another event: %v", edit, err)
		}
	}
	edit := admin.Edit{Payload: new([]byte(whole("Paid", "2,}")))}
	err = o.EditParked(t.Context(), list[0].ID, edit, "x")
	if err == nil || !strings.Contains(err.Error(), "at byte") {
		t.Errorf("what was JSON is not any more: %v", err)
	}
	edit.AnyBytes = true
	if err := o.EditParked(t.Context(), list[0].ID, edit, "x"); !errors.Is(err, operator.ErrAnother) {
		t.Errorf("bytes that are no CloudEvent: %v", err)
	}
	for _, e := range list {
		payload := []byte(whole("Paid", "2"))
		if err := o.EditParked(t.Context(), e.ID, admin.Edit{Payload: &payload}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := o.ReleaseKey(t.Context(), "", "orders", "a", admin.Seen{}, "mended"); err != nil || n != 2 {
		t.Fatalf("%d events released: %v", n, err)
	}
	runs(t, in)
	for range list {
		if kind := <-got; kind != "Paid" {
			t.Errorf("an event of type %q is applied", kind)
		}
	}
}

// TestP9_6_ParkingInsertsFirst: an event fails for good, and its twin is applied before it is parked. It is a
// duplicate.
func TestP9_6_ParkingInsertsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("b", "a")
	twin := w.inbox(inbox.Config{}).Each(write)
	h := w.inbox(inbox.Config{Observer: inbox.Observer{Retried: func(r inbox.RetriedInfo) {
		if r.Reason == "split" { // it has failed for good; the events before it are applied first
			same(t, "twin", handle(t, twin, e[1:]), repeat(inbox.Applied, 1))
		}
	}}}).Each(failing(map[uuid.UUID]error{e[1].ID: outcome.Terminal("x", errBad)}))
	same(t, "outcomes", handle(t, h, e), []inbox.Outcome{inbox.Applied, inbox.Duplicate})
	if len(w.parked()) != 0 || pgtest.One[int](t, w.DB, "select count(*) from inbox_parked_key") != 0 {
		t.Error(w.parked())
	}
	same(t, "effects", w.effects(), []uuid.UUID{e[1].ID, e[0].ID})
}

// TestP9_6_ReleaseRetryable: a released event that fails as Retryable is run again by itself, until MaxRetryFor.
func TestP9_6_ReleaseRetryable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mark func(error) error
		most time.Duration
		code string
	}{
		"waits":                 {outcome.Retryable, 0, ""},
		"gives up":              {outcome.Retryable, 1, "unavailable"},
		"gives up, not knowing": {outcome.Unknown, 1, "outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			e := keyed("a", "a")
			var runsOfIt atomic.Int64
			in := w.inbox(quick(inbox.Config{CrashAttempts: 2, MaxRetryFor: c.most}))
			h := in.Each(func(ctx context.Context, tx pgx.Tx, x event.Event) error {
				switch n := runsOfIt.Add(1); {
				case n == 1:
					return outcome.Terminal("x", errBad)
				case n < 6: // more often than CrashAttempts
					return c.mark(errBad)
				}
				return write(ctx, tx, x)
			})
			same(t, "outcomes", handle(t, h, e), repeat(inbox.Parked, 2))
			w.releaseKey("a", 2)
			runs(t, in)
			if c.code != "" {
				pgtest.AwaitSQL(t, w.DB, "select state = 'parked' and code = $1 from inbox_parked_key", c.code)
				return
			}
			pgtest.AwaitSQL(t, w.DB, "select count(*) = 0 from inbox_parked_key")
			same(t, "effects", w.effects(), ids(e))
		})
	}
}

// TestP9_6_ReleaseInAnotherProcessDelaysNoOther: a process finds a release that another process runs. It must not hold
// its gate while it waits for that release, because its own partitions would wait too.
func TestP9_6_ReleaseInAnotherProcessDelaysNoOther(t *testing.T) {
	t.Parallel()
	w, events := newWorld(t), keyed("a")
	var mended atomic.Bool
	inside, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	first := w.inbox(quick(inbox.Config{}))
	handle(t, first.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if !mended.Load() {
			return outcome.Terminal("x", errBad)
		}
		once.Do(func() { close(inside) })
		<-leave
		return write(ctx, tx, e)
	}), events)
	mended.Store(true)
	w.releaseKey("a", 1)
	runs(t, first)
	t.Cleanup(sync.OnceFunc(func() { close(leave) }))
	<-inside
	cfg, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	looks := make(chan struct{}, 1)
	cfg.ConnConfig.Tracer = statements(func(sql string) {
		if strings.HasPrefix(sql, "-- inbox: releasing") {
			select {
			case looks <- struct{}{}:
			default:
			}
		}
	})
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	second := newInbox(t, db, "ledger", small(quick(inbox.Config{LockTimeout: -1})))
	h, others := second.Each(write), some(30)
	runs(t, second)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range others {
		others[i].Position.Partition = 8
		select {
		case <-looks:
		case <-ctx.Done():
			t.Fatal("no query for releases: the process waits for another process's release")
		}
		if _, err := h.Handle(ctx, others[i:i+1]); err != nil {
			t.Fatal("a partition waits for another process's release:", err)
		}
	}
}

// statements is a tracer that is called with each statement.
type statements func(sql string)

func (s statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s(data.SQL)
	return ctx
}

func (statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestP9_6_ReleasesOfAnotherWorker: the released events of a worker that is down do not keep this worker from its own.
func TestP9_6_ReleasesOfAnotherWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(quick(inbox.Config{}))
	here := in.Each(write)
	in.Each(write) // handles no topic here; with two handlers an event's handler is found by its topic
	handle(t, here, some(1))
	w.Exec(t,
		`insert into inbox_parked (consumer_name, message_id, kind, state, topic, record_partition, record_offset,
				record_millis, record_headers)
		select 'ledger', gen_random_uuid(), 'failed', 'releasing', case when n > 100 then 'payments' else 'refunds' end,
			0, n, 0, '[]' from generate_series(1, 101) n`)
	runs(t, in)
	pgtest.AwaitSQL(t, w.DB,
		`select not exists (select from inbox_parked where topic = 'payments' and state = 'releasing')`)
}

// TestOperatorKeepsToWhatWasSeen: a key's list that is another one than the operator saw is not touched, and a skip of
// the head that is repeated gives up nothing that has not failed.
func TestOperatorKeepsToWhatWasSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "a", "a", "b")
	bad := outcome.Terminal("x", errBad)
	in := w.inbox(quick(inbox.Config{}))
	h := in.Each(failing(map[uuid.UUID]error{e[0].ID: bad, e[4].ID: bad}))
	same(t, "outcomes", handle(t, h, e), repeat(inbox.Parked, 5))
	o := w.operator()
	list, err := o.Parked(t.Context(), admin.ParkedFilter{Key: "a"})
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	first := list[0].ID
	for _, seen := range []admin.Seen{{Head: list[1].ID}, {Most: 3}, {Head: first, Most: 3}} {
		_, released := o.ReleaseKey(t.Context(), "", "payments", "a", seen, "r")
		_, discarded := o.DiscardKey(t.Context(), "", "payments", "a", seen, "r")
		_, skipped := o.SkipHead(t.Context(), "", "payments", "a", seen, false, "r")
		for _, err := range []error{released, discarded, skipped} {
			if !errors.Is(err, admin.ErrAnotherList) ||
				!strings.Contains(err.Error(), fmt.Sprintf("4 events, and event %d is the first", first)) {
				t.Errorf("%+v: %v", seen, err)
			}
		}
	}
	skip := func(seen admin.Seen, keep bool) (admin.SkipResult, error) {
		return o.SkipHead(t.Context(), "", "payments", "a", seen, keep, "r")
	}
	if s, err := skip(admin.Seen{Head: first, Most: 4}, true); err != nil || s.ID != first || s.Released != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{}, true); !errors.Is(err, admin.ErrAnotherList) {
		t.Errorf("an event that has not failed is given up: %+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{Head: list[1].ID}, false); err != nil || s.Released != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{}, false); !errors.Is(err, admin.ErrReleasing) {
		t.Errorf("an event that is being released is given up: %+v, %v", s, err)
	}
	log, err := o.Audit(t.Context(), 100)
	if err != nil || len(log) != 3 || log[0].Action != "release key" || log[1].Action != "discard event" {
		t.Errorf("%+v, %v", log, err)
	}
	if n := pgtest.One[int](t, w.DB, `select count(*) from inbox_parked`); n != 3 {
		t.Errorf("%d events are parked, want two of key a, and that of b", n)
	}
	w.DB.Exec(t, `update inbox_parked_key set state = 'parked'`)
	w.DB.Exec(t, `delete from inbox_parked where record_key = 'a'`)
	if s, err := skip(admin.Seen{}, false); !errors.Is(err, admin.ErrNotParked) {
		t.Errorf("of an empty list: %+v, %v", s, err)
	}
}
