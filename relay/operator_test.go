package relay_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

func newOperator(t *testing.T, db *pgtest.DB) *operator.Operator {
	t.Helper()
	o, err := operator.New(db.Pool, "", "kim")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// parkedRow inserts a parked event as a settle does, with the mark of its key unless it is parked alone.
func parkedRow(t *testing.T, db *pgtest.DB, id int64, key string, alone, maybe bool) {
	t.Helper()
	db.Exec(t,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
				tenant, topic, key, type, content_type, headers, payload, created_at)
		values (7, $1, $3, $4, 1, 'too large', 'MESSAGE_TOO_LARGE', gen_random_uuid(), 's', 't', 'payments', $2, 'T',
			'text/plain', '{"a": "b"}', 'hello', now())`, id, key, alone, maybe)
	if !alone {
		db.Exec(t,
			`insert into outbox_parked_key (lane, tenant, topic, key, reason, code) values (7, 't', 'payments', $1,
					'too large', 'MESSAGE_TOO_LARGE') on conflict do nothing`, key)
	}
}

func TestOperatorListsAndReads(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	for id := range int64(5) {
		parkedRow(t, db, id+1, "k", false, id == 0)
	}
	parkedRow(t, db, 6, "", true, false)
	tenant, none := "t", ""
	for name, c := range map[string]struct {
		filter admin.ParkedFilter
		want   int
	}{
		"all": {admin.ParkedFilter{}, 6}, "key": {admin.ParkedFilter{
			Key: "k", Topic: "payments",
			Tenant: &tenant,
		}, 5},
		"the empty tenant": {admin.ParkedFilter{Tenant: &none}, 0},
		"code":             {admin.ParkedFilter{Code: "MESSAGE_TOO_LARGE", Limit: 2}, 2},
		"page":             {admin.ParkedFilter{After: 4}, 2}, "age": {admin.ParkedFilter{OlderThan: 1e12}, 0},
		"id": {admin.ParkedFilter{ID: 3}, 1},
	} {
		list, err := o.Parked(t.Context(), c.filter)
		if err != nil || len(list) != c.want {
			t.Errorf("%s: %d events, want %d: %v", name, len(list), c.want, err)
		}
	}
	e, err := o.ParkedEvent(t.Context(), 1)
	if err != nil || string(e.Payload) != "hello" || e.Headers["a"] != "b" || !e.MaybePublished || e.Bytes != 5 ||
		e.Alone {
		t.Errorf("event %+v: %v", e, err)
	}
	if byID, err := o.Parked(t.Context(), admin.ParkedFilter{MessageID: e.MessageID}); err != nil ||
		len(byID) != 1 || byID[0].Payload != nil {
		t.Errorf("by message id: %+v, %v", byID, err)
	}
	if _, err := o.ParkedEvent(t.Context(), 99); !errors.Is(err, admin.ErrNotParked) {
		t.Errorf("error %v", err)
	}
	keys, err := o.BlockedKeys(t.Context(), admin.BlockedFilter{})
	if err != nil || len(keys) != 1 || keys[0].Waiting != 5 || keys[0].Key != "k" || *keys[0].Head != e.MessageID ||
		keys[0].Releasing {
		t.Errorf("keys %+v: %v", keys, err)
	}
	if held, err := o.Held(t.Context()); err != nil || len(held) != 0 {
		t.Errorf("held %+v: %v", held, err)
	}
}

func TestOperatorChangesAndIsAudited(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	parkedRow(t, db, 1, "k", false, true)
	parkedRow(t, db, 2, "k", false, false)
	parkedRow(t, db, 3, "", true, false)
	payload, headers := []byte("better"), map[string]string{"c": "d"}
	if err := o.EditParked(t.Context(), 1, admin.Edit{Payload: &payload, Headers: &headers},
		"wrong amount"); err != nil {
		t.Fatal(err)
	}
	e, err := o.ParkedEvent(t.Context(), 1)
	if err != nil || string(e.Payload) != "better" || e.Headers["c"] != "d" || len(e.Headers) != 1 ||
		e.ContentType != "text/plain" {
		t.Errorf("edited: %+v, %v", e, err)
	}
	if err := o.EditParked(t.Context(), 1, admin.Edit{Headers: &map[string]string{"ce_id": "x"}}, "r"); err == nil {
		t.Error("a header of the codec's own was accepted")
	}
	if d, err := o.DiscardEvent(t.Context(), 1, "a test payment"); err != nil ||
		d != (admin.DiscardResult{Events: 1, MaybePublished: 1}) {
		t.Errorf("discarded %+v: %v", d, err)
	}
	if err := o.ReleaseEvent(t.Context(), 2, "r"); err == nil {
		t.Error("an event was released past its key's list")
	}
	if err := o.ReleaseEvent(t.Context(), 3, "topic was repaired"); err != nil {
		t.Error(err)
	}
	if n, err := o.ReleaseKey(t.Context(), "t", "payments", "k", admin.Seen{}, "r"); n != 1 || err != nil {
		t.Errorf("released %d: %v", n, err)
	}
	for _, id := range []int64{2, 3} {
		if err := o.EditParked(t.Context(), id, admin.Edit{Payload: &payload}, "r"); !errors.Is(err,
			admin.ErrReleasing) {
			t.Errorf("edit of a released event: %v", err)
		}
	}
	if d, err := o.DiscardKey(t.Context(), "t", "payments", "k", admin.Seen{}, "give up"); err != nil ||
		d != (admin.DiscardResult{Events: 1}) {
		t.Errorf("discarded %+v: %v", d, err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_parked_key`); n != 0 {
		t.Errorf("%d marks without a list", n)
	}
	if _, err := o.DiscardKey(t.Context(), "t", "payments", "k", admin.Seen{},
		"again"); !errors.Is(err, admin.ErrNotParked) {
		t.Errorf("error %v", err)
	}
	for _, reason := range []string{" ", strings.Repeat("x", admin.MostReason+1)} {
		err := o.ReleaseEvent(t.Context(), 3, reason)
		if err == nil || !strings.Contains(err.Error(), "the reason") {
			t.Errorf("a reason of %d bytes: %v", len(reason), err)
		}
	}
	log, err := o.Audit(t.Context(), 100)
	if err != nil || len(log) != 5 || log[0].Action != "discard key" || log[0].Operator != "kim" ||
		log[0].Reason != "give up" || log[4].MessageID == nil {
		t.Errorf("audit %+v: %v", log, err)
	}
}

// TestOperatorReveals: every look at a payload is audited, and an edit fails if the event has changed since it was
// shown.
func TestOperatorReveals(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	parkedRow(t, db, 1, "k", false, false)
	if may, err := o.MayChange(t.Context()); err != nil || !may {
		t.Errorf("the owner may not edit: %v", err)
	}
	if e, err := o.RevealParked(t.Context(), 1, " "); err == nil || e.Payload != nil {
		t.Errorf("revealed without a reason: %+v", e)
	}
	e, err := o.RevealParked(t.Context(), 1, "a customer asks")
	if err != nil || string(e.Payload) != "hello" || e.Headers["a"] != "b" {
		t.Errorf("%+v, %v", e, err)
	}
	if log, err := o.Audit(t.Context(), 10); err != nil || len(log) != 1 || log[0].Action != "reveal parked" ||
		log[0].Reason != "a customer asks" || *log[0].MessageID != e.MessageID {
		t.Errorf("%+v, %v", log, err)
	}
	if _, err := o.RevealParked(t.Context(), 99, "r"); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
	seen, payload := sha256.Sum256(e.Payload), []byte("better")
	edit := admin.Edit{Payload: &payload, Before: &seen}
	if err := o.EditParked(t.Context(), 1, edit, "a typo"); err != nil {
		t.Error(err)
	}
	if err := o.EditParked(t.Context(), 1, edit, "a typo"); !errors.Is(err, admin.ErrEdited) {
		t.Error(err)
	}
}

// TestEditKeepsJSON: a payload that was JSON stays JSON, or becomes a tombstone, unless bytes are meant.
func TestEditKeepsJSON(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	parkedRow(t, db, 1, "k", false, false)
	edit := func(payload []byte, anyBytes bool) error {
		return o.EditParked(t.Context(), 1, admin.Edit{Payload: &payload, AnyBytes: anyBytes}, "a typo")
	}
	for i, c := range []struct {
		payload []byte
		force   bool
		refused string
	}{
		{payload: []byte(`no JSON is no JSON,`)},
		{payload: []byte(`{"amount": 1}`)},
		{payload: []byte(`{"amount": 1,}`), refused: "at byte 14: invalid character '}'"},
		{payload: []byte{}, refused: "at byte 0: unexpected end"},
		{payload: []byte(`[2]`)},
		{payload: []byte(`{"amount": 1,}`), force: true},
		{payload: []byte(`{}`)},
		{payload: nil},
		{payload: []byte(`{`)},
	} {
		err := edit(c.payload, c.force)
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d: %q: %v, want %q", i, c.payload, err, c.refused)
		}
		is := pgtest.One[[]byte](t, db, "select payload from outbox_parked")
		if changed := bytes.Equal(is, c.payload); changed != (c.refused == "") {
			t.Errorf("%d: it has %q", i, is)
		}
	}
}

func TestOperatorSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	if _, err := operator.New(nil, "", "kim"); err == nil {
		t.Error("a nil pool was accepted")
	}
	if _, err := operator.New(db.Pool, "", " "); err == nil {
		t.Error("no name was accepted")
	}
	if _, err := operator.New(db.Pool, "a;b", "kim"); err == nil {
		t.Error("a bad schema was accepted")
	}
}

// TestOperatorThatFallsSilentKeepsNoLane: an operator's process may hang in the middle of a change that has locked a
// lane.
func TestOperatorThatFallsSilentKeepsNoLane(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	parkedRow(t, db, 7, "k", true, false)
	db.Exec(t, `create function seen() returns trigger language plpgsql as $$ begin
		new.detail = jsonb_build_object('pause', current_setting('idle_in_transaction_session_timeout')); return new; end $$`)
	db.Exec(t, `create trigger seen before insert on outbox_audit for each row execute function seen()`)
	if err := newOperator(t, db).ReleaseEvent(t.Context(), 7, "r"); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.One[string](t, db, `select detail->>'pause' from outbox_audit`); got != "10s" {
		t.Errorf("the transaction may be idle for %s", got)
	}
}

// TestP4DiscardSeesLaterEvents: while the discard of a parked event waits for the lane's lock, another event is put
// behind the parked one. The key must stay parked, whatever the database's default isolation level is: without the
// key's mark the event would never be released.
func TestP4DiscardSeesLaterEvents(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	parkedRow(t, f.db, 1, "k", false, false)
	cfg := f.db.Pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	f.must(err)
	t.Cleanup(pool.Close)
	o, err := operator.New(pool, "", "anna")
	f.must(err)
	claim := f.begin(f.db, `select from outbox_lane for update`)
	ended := make(chan error, 1)
	go func() {
		_, err := o.DiscardEvent(t.Context(), 1, "r")
		ended <- err
	}()
	pgtest.AwaitBlocking(t, f.db, claim.PgConn().PID())
	f.exec(claim,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select lane, 2, false, false, 0, gen_random_uuid(), source, tenant, topic, key, type, content_type, created_at
		from outbox_parked`)
	f.exec(claim, `commit`)
	f.must(<-ended)
	if n := pgtest.One[int](t, f.db,
		`select count(*) from outbox_parked p join outbox_parked_key k using (key_hash) where id = 2`); n != 1 {
		t.Error("an event is parked without its key's mark")
	}
}

// TestOperatorKeepsToWhatWasSeen: a key's list that is another one than the operator saw is not touched, and a skip of
// the head that is repeated gives up nothing that has not failed.
func TestOperatorKeepsToWhatWasSeen(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	for id := range int64(4) {
		parkedRow(t, db, id+1, "k", false, id == 0)
	}
	db.Exec(t, `update outbox_parked set attempts = 0, code = '', reason = '' where id > 1`)
	for _, seen := range []admin.Seen{{Head: 2}, {Most: 3}, {Head: 1, Most: 3}} {
		_, released := o.ReleaseKey(t.Context(), "t", "payments", "k", seen, "r")
		_, discarded := o.DiscardKey(t.Context(), "t", "payments", "k", seen, "r")
		_, skipped := o.SkipHead(t.Context(), "t", "payments", "k", seen, false, "r")
		for _, err := range []error{released, discarded, skipped} {
			if !errors.Is(err, admin.ErrAnotherList) ||
				!strings.Contains(err.Error(), "4 events, and event 1 is the first") {
				t.Errorf("%+v: %v", seen, err)
			}
		}
	}
	skip := func(seen admin.Seen, keep bool) (admin.SkipResult, error) {
		return o.SkipHead(t.Context(), "t", "payments", "k", seen, keep, "r")
	}
	if s, err := skip(admin.Seen{Head: 1, Most: 4}, true); err != nil || s.ID != 1 || s.Released != 0 ||
		s.MaybePublished != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{}, true); !errors.Is(err, admin.ErrAnotherList) {
		t.Errorf("an event that has not failed is given up: %+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{Head: 2}, false); err != nil || s.ID != 2 || s.Released != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := skip(admin.Seen{}, false); !errors.Is(err, admin.ErrReleasing) {
		t.Errorf("an event that is being released is given up: %+v, %v", s, err)
	}
	log, err := o.Audit(t.Context(), 100)
	if err != nil || len(log) != 3 || log[0].Action != "release key" || log[1].Action != "discard event" {
		t.Errorf("%+v, %v", log, err)
	}
	if _, err := o.DiscardKey(t.Context(), "t", "payments", "k", admin.Seen{Head: 3, Most: 2}, "r"); err != nil {
		t.Error(err)
	}
}
