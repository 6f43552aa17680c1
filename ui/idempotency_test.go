package ui_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

func intent(value string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: value},
		Fingerprint: idempotency.Fingerprint{Version: 1}, Input: []byte("canary-input"),
	}
}

// givenUp leaves operations that may have happened, and has recovery give them up.
func givenUp(t *testing.T, db *pgtest.DB, values ...string) *guard.Guard {
	t.Helper()
	store, err := pgstore.New(db.Pool, pgstore.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(store, guard.Config{RecoverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		_, err := g.Run(t.Context(), intent(value), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			_, err := op.CallAs(ctx, "charge", "bank_"+value, func(context.Context, guard.Call) ([]byte, error) {
				return nil, errors.New("no <answer>")
			})
			return idempotency.Result{}, err
		})
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
	}
	handlers := map[string]recovery.Handler{"payment.create": {}}
	w, err := recovery.New(store, handlers, recovery.Config{Grace: -1, Parallel: 20})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.Once(t.Context()); n != len(values) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	return g
}

// TestIdempotencyKeys: what is stuck is named with the key to ask the provider by, and is ended in each way, once.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	g := givenUp(t, db, "happened", "did-not", "again", "again-too")
	s := serve(t, ui.Config{}, of("shop", db))
	wants(t, s.examined(), "4 operations may or may not have happened, and recovery gave up",
		"Idempotency keys 4 stuck", "relay keys stuck")
	page := s.get("/idempotency")
	wants(t, page, "payment.create acme happened charge bank_happened PROVIDER_REQUEST_SENT 1",
		"relay keys free --schema="+db.Schema+" --tenant=acme --operation=payment.create --key=did-not --sure --reason",
		"Recovery has nothing to find out.", "Retry all of payment.create")
	lacks(t, page, "canary-input", "<answer>")

	of := func(value string, more ...string) []string {
		return append([]string{"tenant", "acme", "operation", "payment.create", "key", value}, more...)
	}
	const at = "/db/shop/keys/"
	for _, wrong := range []struct {
		verb string
		form []string
	}{
		{"free", of("did-not")},
		{"complete", of("happened", "code", "503")},
		{"complete", of("happened")},
		{"complete", of("happened", "code", "201", "body", `{"payment":`, "content-type", "application/json")},
		{"retry", []string{"key", "again"}},
		{"retry", []string{"all", "1"}},
	} {
		if status, page := s.post(at+wrong.verb, wrong.form...); status < 400 || status >= 500 {
			t.Errorf("%s %v: %d %s", wrong.verb, wrong.form, status, page)
		}
	}
	status, page := s.post(at+"complete", of("happened", "code", "201", "resource", "p1", "body", `{"payment":"p1"}`,
		"content-type", "application/json")...)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "It is completed", "relay keys complete --schema="+db.Schema+" --tenant=acme --operation="+
		"payment.create --key=happened --code=201 --resource=p1 --body=answer.json "+
		"--reason")
	never := func(context.Context, *guard.Op) (idempotency.Result, error) {
		t.Error("it ran")
		return idempotency.Result{}, nil
	}
	if res, err := g.Run(t.Context(), intent("happened"), never); err != nil || string(res.Body) != `{"payment":"p1"}` {
		t.Errorf("%+v, %v", res, err)
	}
	if status, page = s.post(at+"free", of("did-not", "sure", "1")...); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	if status, page = s.post(at+"free", of("did-not", "sure", "1")...); status != http.StatusConflict {
		t.Errorf("what is free: %d %s", status, page)
	}
	wants(t, page, "Nothing was changed: somebody was quicker")
	if status, page = s.post(at+"retry", of("again")...); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	status, page = s.post(at+"retry", "operation", "payment.create", "all", "1")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "Recovery tries 1 operation once more.")
	page = s.get("/idempotency")
	wants(t, page, "No operation is stuck.", "by hand: it's <late>")
	wants(t, s.get("/idempotency?key=happened"), "payment.create acme happened COMPLETED", "201 p1")
	wants(t, s.get("/idempotency?key=nobodys"), "No operation has this key.")
	wants(t, s.get("/audit"), "night <b>shift</b> complete shop keys payment.create happened it's <late>", "free",
		"retry")
	if n := pgtest.One[int64](t, db, `select count(*) from idempotency_audit where operator = 'night <b>shift</b>'
		and reason = 'it''s <late>'`); n != 4 {
		t.Errorf("the audit has %d", n)
	}
}

// TestIdempotencyLostReply: whether a key was freed is unknown when there was no answer.
func TestIdempotencyLostReply(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	givenUp(t, db, "k")
	proxy, database := through(t, db)
	s := serve(t, ui.Config{}, database)
	s.get("/idempotency")
	trap := proxy.On(func(sql string) bool { return strings.HasPrefix(sql, "-- pgstore: free") }, 0, pgtest.DropReply)
	status, page := s.post("/db/orders/keys/free", "tenant", "acme", "operation", "payment.create", "key", "k",
		"sure", "1")
	<-trap.Fired()
	if status != http.StatusGatewayTimeout {
		t.Errorf("%d", status)
	}
	wants(t, page, "It is unknown whether this was done")
	wants(t, s.get("/audit"), "free")
}

// TestIdempotencyOverdue: the overview does not say that recovery has what no worker takes.
func TestIdempotencyOverdue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	givenUp(t, db, "k")
	db.Exec(t, `update idempotency_key set due_at = clock_timestamp() - interval '3 min'`)
	page := serve(t, ui.Config{}, of("shop", db)).examined()
	wants(t, page, "1 unknown", "1 overdue: no recovery takes them", "1 operation has been due", "relay keys unknown")
	lacks(t, page, "recovery has them")
}

// TestIdempotencyReadOnly: a role that may only read gets no buttons.
func TestIdempotencyReadOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Idempotency)
	givenUp(t, db, "k")
	s := serve(t, ui.Config{}, ui.Database{Name: "shop", Pool: reader(t, db), Schema: db.Schema})
	page := s.get("/idempotency")
	wants(t, page, "lets this page only read", "bank_k", "Commands")
	lacks(t, page, `method="post"`)
	status, page := s.post("/db/shop/keys/retry", "tenant", "acme", "operation", "payment.create", "key", "k")
	if status != http.StatusForbidden {
		t.Errorf("%d %s", status, page)
	}
}
