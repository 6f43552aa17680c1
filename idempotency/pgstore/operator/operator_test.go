package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

type scene struct {
	db    *pgtest.DB
	store *pgstore.Store
	guard *guard.Guard
	o     *operator.Operator
}

func newScene(t *testing.T) scene {
	t.Helper()
	db := pgtest.New(t, "idempotency")
	s, err := pgstore.New(db.Pool, pgstore.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(s, guard.Config{RecoverAfter: -1, Keep: idempotency.Retention{Tombstone: month}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := operator.New(db.Pool, db.Schema, "ann")
	if err != nil {
		t.Fatal(err)
	}
	return scene{db, s, g, o}
}

// month is the retention that the service promises.
const month = 30 * 24 * time.Hour

func key(value string) idempotency.Key {
	return idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: value}
}

func request(value string) idempotency.Request {
	return idempotency.Request{
		Key: key(value), Fingerprint: idempotency.Fingerprint{Version: 1}, Input: []byte("canary-input"),
	}
}

// unknown leaves operations of which nobody knows the outcome.
func (s scene) unknown(t *testing.T, values ...string) {
	t.Helper()
	for _, value := range values {
		_, err := s.guard.Run(t.Context(), request(value), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			_, err := op.CallAs(ctx, "charge", "bank_"+value, func(context.Context, guard.Call) ([]byte, error) {
				return nil, errors.New("no answer")
			})
			return idempotency.Result{}, err
		})
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
	}
}

// stuck has recovery give them up.
func (s scene) stuck(t *testing.T, values ...string) {
	t.Helper()
	s.unknown(t, values...)
	handlers := map[string]recovery.Handler{"payment.create": {}}
	w, err := recovery.New(s.store, handlers, recovery.Config{Grace: -1, Parallel: 20})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.Once(t.Context()); n != len(values) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
}

func names(list []operator.Operation) string {
	var all []string
	for _, o := range list {
		all = append(all, o.Key)
	}
	return strings.Join(all, " ")
}

// TestStuckOperationsAreEnded: each in its way, once, with its row of the audit; whoever had a key before writes
// nothing to it any more.
func TestStuckOperationsAreEnded(t *testing.T) {
	t.Parallel()
	s, ctx := newScene(t), t.Context()
	s.stuck(t, "happened", "did-not", "again", "all-1", "all-2")
	s.unknown(t, "young")
	list, err := s.o.Stuck(ctx, operator.Filter{})
	if err != nil || names(list) != "happened did-not again all-1 all-2" {
		t.Fatalf("%+v, %v", list, err)
	}
	if one := list[0]; !one.Stuck || one.Open != "charge" || one.Asked != "bank_happened" || one.Attempts != 1 ||
		one.Stage != idempotency.ProviderRequestSent || one.Due != nil || one.Reason == "" {
		t.Errorf("%+v", one)
	}
	if list, err = s.o.Stuck(ctx, operator.Filter{Operation: "another"}); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err = s.o.Unknown(ctx, operator.Filter{}); err != nil || names(list) != "young" || list[0].Due == nil {
		t.Errorf("%+v, %v", list, err)
	}
	counts, err := s.o.Count(ctx)
	if err != nil || counts.Stuck != 5 || counts.Unknown != 1 || counts.InProgress != 0 {
		t.Errorf("%+v, %v", counts, err)
	}

	before, _, err := s.store.Get(ctx, key("happened"))
	if err != nil {
		t.Fatal(err)
	}
	token := pgtest.One[string](t, s.db, `select token from idempotency_key where key = 'happened'`)
	answer, err := operator.Answer(201, "", "p1", "application/json", []byte(`{"payment":"p1"}`))
	if err == nil {
		err = s.o.Complete(ctx, key("happened"), answer, "the bank has it")
	}
	if err != nil {
		t.Fatal(err)
	}
	if kept := pgtest.One[time.Duration](t, s.db,
		`select forget_at - finished_at from idempotency_key where key = 'happened'`); kept != month {
		t.Errorf("the service promised to remember the key for %v, and it is kept for %v", month, kept)
	}
	late := store.Lease{Key: key("happened"), Fence: before.Fence, Token: token}
	if err := s.store.Finish(ctx, late, idempotency.Result{Code: 500}, idempotency.Retention{}); !errors.Is(err,
		store.ErrLeaseLost) {
		t.Errorf("who had the key before writes to it: %v", err)
	}
	never := func(context.Context, *guard.Op) (idempotency.Result, error) {
		t.Error("it ran")
		return idempotency.Result{}, nil
	}
	if res, err := s.guard.Run(ctx, request("happened"), never); err != nil || !res.Replayed || res.Code != 201 ||
		string(res.Body) != `{"payment":"p1"}` || res.Header["Content-Type"][0] != "application/json" {
		t.Errorf("%+v, %v", res, err)
	}
	if err := s.o.Free(ctx, key("did-not"), "the bank knows nothing"); err != nil {
		t.Error(err)
	}
	if _, found, err := s.store.Get(ctx, key("did-not")); found || err != nil {
		t.Errorf("the freed key is there: %v", err)
	}
	if err := s.o.Retry(ctx, key("again"), "the bank is back"); err != nil {
		t.Error(err)
	}
	if n, err := s.o.RetryAll(ctx, "payment.create", "the bank is back"); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	taken, err := s.store.Recover(ctx, store.RecoverOptions{Limit: 10, Lease: time.Minute, Token: "r"})
	if err != nil || len(taken) != 4 {
		t.Errorf("%+v, %v", taken, err)
	}
	for name, err := range map[string]error{
		"complete": s.o.Complete(ctx, key("happened"), answer, "r"),
		"free":     s.o.Free(ctx, key("did-not"), "r"), "retry": s.o.Retry(ctx, key("again"), "r"),
		"young": s.o.Free(ctx, key("young"), "r"),
	} {
		if !errors.Is(err, operator.ErrNotStuck) || !errors.Is(err, store.ErrNotStuck) {
			t.Errorf("%s of what is not stuck: %v", name, err)
		}
	}
	entries, err := s.o.Audit(ctx, 10)
	if err != nil || len(entries) != 5 {
		t.Fatalf("%+v, %v", entries, err)
	}
	if first := entries[4]; first.Operator != "ann" || first.Action != "complete" || first.Key != "happened" ||
		first.Tenant != "acme" || first.Operation != "payment.create" || first.Reason != "the bank has it" ||
		strings.Contains(string(first.Detail), "payment\"") {
		t.Errorf("%+v", first)
	}
}

// TestChangesAreRefused: without a reason, and with an answer that no caller may get.
func TestChangesAreRefused(t *testing.T) {
	t.Parallel()
	s, ctx := newScene(t), t.Context()
	s.stuck(t, "k")
	if _, err := operator.Answer(503, "", "", "", nil); !errors.Is(err, operator.ErrCode) {
		t.Error(err)
	}
	for kind, ok := range map[string]bool{
		"application/json; charset=utf-8": false, "application/problem+json": false, "text/plain": true, "": true,
	} {
		if _, err := operator.Answer(201, "", "", kind, []byte(`{"payment":`)); (err == nil) != ok {
			t.Errorf("half an object as %q: %v", kind, err)
		}
	}
	for name, err := range map[string]error{
		"no reason":    s.o.Free(ctx, key("k"), " "),
		"no operation": s.o.Retry(ctx, idempotency.Key{Value: "k"}, "r"),
		"a failure":    s.o.Complete(ctx, key("k"), idempotency.Result{Code: 503}, "r"),
	} {
		if err == nil || errors.Is(err, operator.ErrNotStuck) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := s.o.Stuck(ctx, operator.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestFind: a key is found whosever it is, in whatever state; what was not looked at is said.
func TestFind(t *testing.T) {
	t.Parallel()
	s, ctx := newScene(t), t.Context()
	s.stuck(t, "4711")
	for _, k := range []idempotency.Key{
		{Operation: "payment.create", Value: "4711"},
		{Tenant: "zoo", Operation: "refund", Value: "4711"},
		{Tenant: "zoo", Operation: "refund", Value: "4712"},
	} {
		r := idempotency.Request{Key: k, Fingerprint: idempotency.Fingerprint{Version: 1}}
		_, err := s.guard.Run(ctx, r, func(context.Context, *guard.Op) (idempotency.Result, error) {
			return idempotency.Result{Code: 201, Resource: "p1"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.o.Find(ctx, "4711")
	found := all.Operations
	if err != nil || len(all.Unsearched) != 0 || len(found) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if f := found[1]; f.Tenant != "acme" || !f.Stuck || f.Asked != "bank_4711" {
		t.Errorf("%+v", f)
	}
	if f := found[2]; f.Tenant != "zoo" || f.State != idempotency.Completed || f.Resource != "p1" ||
		f.FinishedAt == nil {
		t.Errorf("%+v", f)
	}
	for _, none := range []string{"nobody's", "ü", ""} {
		if f, err := s.o.Find(ctx, none); err != nil || len(f.Unsearched) != 0 || len(f.Operations) != 0 {
			t.Errorf("%q: %+v, %v", none, f, err)
		}
	}
	s.db.Exec(t, `insert into idempotency_key (tenant, operation, key, state, fingerprint, fingerprint_version, fence,
			token, finished_at)
		select 'many-' || g, 'o', 'k', 'COMPLETED', sha256(''), 1, 1, 't', now() from generate_series(1, 10000) g`)
	if f, err := s.o.Find(ctx, "4711"); err != nil || len(f.Unsearched) != 1 || len(f.Operations) != 2 {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestAccess: a database without keys, and one whose role may do all.
func TestAccess(t *testing.T) {
	t.Parallel()
	none := pgtest.New(t)
	for name, db := range map[string]*pgtest.DB{"": none, "keys": newScene(t).db} {
		o, err := operator.New(db.Pool, db.Schema, "ann")
		if err != nil {
			t.Fatal(err)
		}
		look, change, err := o.Access(t.Context())
		if want := name != ""; look != want || change != want || err != nil {
			t.Errorf("%q: %v, %v, %v", name, look, change, err)
		}
	}
}
