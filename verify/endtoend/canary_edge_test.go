package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// edge is the part of a service that logs, counts and replies.
type edge struct {
	output *output
	keys   *pgstore.Store
	guard  *guard.Guard
	http   httpedge.Edge
}

// privateRequest has a canary in each field with a client's data.
func privateRequest(t *testing.T, operation, value, command string) idempotency.Request {
	t.Helper()
	r, err := idempotency.Fingerprinter{KeepInput: true}.Request(
		idempotency.Key{Tenant: keyCanary + "-tenant", Operation: operation, Value: keyCanary + "-" + value},
		map[string]string{"card": payloadCanary, "command": command})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// privateResult is a result whose personal data are canaries.
func (e edge) privateResult() idempotency.Result {
	return idempotency.Result{
		Code: 201, Header: map[string][]string{"Etag": {headerCanary}},
		Body: []byte(payloadCanary),
	}
}

// noteAnswer adds the error, and the HTTP response unless it belongs to the client with these data.
func (e edge) noteAnswer(what string, res idempotency.Result, err error, mine bool) {
	if err != nil {
		e.output.value(what, err)
	}
	w := httptest.NewRecorder()
	e.http.Write(w, res, err)
	if !mine {
		fmt.Fprintf(e.output, "%s answer: %v %s\n", what, w.Header(), w.Body)
	}
}

// observer adds every call, from which metrics are derived, with errors as text.
func (s *output) observer() idempotency.Observer {
	return idempotency.Observer{
		Replayed: printer[idempotency.ReplayedInfo](s), Mismatched: printer[idempotency.MismatchedInfo](s),
		InProgress: printer[idempotency.InProgressInfo](s), ExpiredRetry: printer[idempotency.ExpiredInfo](s),
		Unknown: printer[idempotency.UnknownInfo](s), Finished: printer[idempotency.FinishedInfo](s),
		Released: printer[idempotency.ReleasedInfo](s), LeaseLost: printer[idempotency.LeaseLostInfo](s),
	}
}

func printer[T any](s *output) func(T) {
	return func(i T) { fmt.Fprintf(s, "%T: %+v\n", i, i) }
}

// TestI10EdgeLeaksNothing: keys, tenants, commands and results are in no log, error or metric, and no refusal reveals
// one client's data to another client.
func TestI10EdgeLeaksNothing(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t, migrations.Idempotency), newOutput()
	var err error
	e := edge{output: s, http: httpedge.Edge{Logger: s.log()}}
	if e.keys, err = pgstore.New(db.Pool, pgstore.Config{Logger: s.log(), Observer: s.observer()}); err != nil {
		t.Fatal(err)
	}
	if e.guard, err = guard.New(e.keys, guard.Config{
		Logger: s.log(), Observer: s.observer(),
		RecoverAfter: -1,
	}); err != nil {
		t.Fatal(err)
	}
	e.transactions(t, db)
	e.providers(t)
	e.requests(t)

	text := s.checkLeaks(t)
	for _, want := range []string{
		"ReplayedInfo", "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST", "left to recovery",
		"recovery processed an operation", authored,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
}

// transactions runs InTx with each of its outcomes.
func (e edge) transactions(t *testing.T, db *pgtest.DB) {
	db.Exec(t, "create table card (number text primary key)")
	pay := func(_ context.Context, tx pgx.Tx) (idempotency.Result, error) {
		_, err := tx.Exec(t.Context(), "insert into card values ($1)", payloadCanary)
		return e.privateResult(), err
	}
	for _, command := range []string{"first", "first", "another"} {
		res, err := e.keys.InTx(t.Context(), privateRequest(t, "pay", "1", command), pay)
		e.noteAnswer("in tx "+command, res, err, command == "first")
	}
	// The card exists: a unique violation that contains its value.
	res, err := e.keys.InTx(t.Context(), privateRequest(t, "pay", "2", "first"), pay)
	e.noteAnswer("violated", res, err, false)
	res, err = e.keys.InTx(t.Context(), privateRequest(t, "pay", "3", "first"),
		func(context.Context, pgx.Tx) (idempotency.Result, error) {
			bad := e.privateResult()
			bad.Resource = payloadCanary + "\x00" // invalid in Postgres
			return bad, nil
		})
	e.noteAnswer("refused by the table", res, err, false)
	for _, key := range []idempotency.Key{
		{Operation: "pay", Value: keyCanary + "\n"},
		{Operation: "pay", Value: keyCanary, Tenant: strings.Repeat(keyCanary, 50)},
	} {
		_, err := e.keys.InTx(t.Context(), idempotency.Request{Key: key}, pay)
		e.noteAnswer("an invalid key", idempotency.Result{}, err, false)
		e.output.value("a wrong region", keys.Regions{Here: "eu1", Known: []string{"eu1"}}.Check(key))
	}
	_, err = idempotency.NewRequest(idempotency.Key{Operation: "pay", Value: keyCanary},
		map[string]string{"card": payloadCanary + "\xff"})
	e.output.value("no canonical form", err)
}

// providers runs calls that fail until recovery gives up.
func (e edge) providers(t *testing.T) {
	asked := errors.New(authored)
	work := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		_, err := op.CallAs(ctx, "charge", keyCanary+"-charge", func(context.Context, guard.Call) ([]byte, error) {
			return []byte(payloadCanary), asked
		})
		return e.privateResult(), err
	}
	for _, command := range []string{"first", "first", "another"} {
		res, err := e.guard.Run(t.Context(), privateRequest(t, "charge", "4", command), work)
		e.noteAnswer("run "+command, res, err, false)
	}
	for i, err := range []error{outcome.Retryable(asked), outcome.Terminal("declined", asked), nil} {
		res, err := e.guard.Do(t.Context(), privateRequest(t, "mail", fmt.Sprint(5+i), "first"),
			func(context.Context) (idempotency.Result, error) { return e.privateResult(), err })
		e.noteAnswer("do", res, err, true)
	}
	worker, err := recovery.New(e.keys, map[string]recovery.Handler{"charge": {Resume: work}}, recovery.Config{
		Grace: -1, Logger: e.output.log(),
		Observer: recovery.Observer{Recovered: printer[recovery.RecoveredInfo](e.output)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := worker.Once(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	res, err := e.guard.Run(t.Context(), privateRequest(t, "charge", "4", "first"), work)
	e.noteAnswer("stuck", res, err, false)
}

// requests sends requests through the middleware.
func (e edge) requests(t *testing.T) {
	tenant := func(*http.Request) (string, error) { return keyCanary, nil }
	guarded := httpedge.Middleware(e.guard, tenant, httpedge.Config{Edge: e.http})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Set-Cookie", headerCanary)
			if r.URL.Path == "/500" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = io.WriteString(w, payloadCanary)
		}))
	for _, r := range []struct{ path, key, body string }{
		{"/ok", "a", payloadCanary},
		{"/ok", "a", "another" + payloadCanary},
		{"/500", "b", payloadCanary},
		{"/500", "b", payloadCanary},
		{"/ok", strings.Repeat("c", 300), payloadCanary},
		{"/ok", "\"", payloadCanary},
	} {
		req := httptest.NewRequest(http.MethodPost, r.path, strings.NewReader(r.body))
		req.Header.Set(httpedge.HeaderKey, keyCanary+r.key)
		if r.key == "\"" {
			req.Header.Set(httpedge.HeaderKey, `"`+keyCanary)
		}
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, req)
		if w.Header().Get("Content-Type") == "application/problem+json" {
			fmt.Fprintf(e.output, "problem: %s\n", w.Body)
		}
	}
}
