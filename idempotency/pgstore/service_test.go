package pgstore_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
)

// testService is a service that takes payments: its table, an outbox, and the store of its keys.
type testService struct {
	*pgtest.DB
	store *pgstore.Store
	t     *testing.T
}

func newTestService(t *testing.T, cfg pgstore.Config) *testService {
	t.Helper()
	s := &testService{DB: pgtest.New(t, "idempotency", "outbox"), t: t}
	s.Exec(t, "create table payment (id bigint generated always as identity primary key, key text not null, amount "+
		"int not null)")
	s.store = s.open(s.Pool, cfg)
	return s
}

func (s *testService) open(pool *pgxpool.Pool, cfg pgstore.Config) *pgstore.Store {
	s.t.Helper()
	store, err := pgstore.New(pool, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return store
}

// storeThroughProxy returns a store whose connections go through a proxy, with the schema as application_name.
func (s *testService) storeThroughProxy(cfg pgstore.Config) (*pgstore.Store, *pgtest.Proxy) {
	s.t.Helper()
	pool, proxy := s.throughProxy()
	return s.open(pool, cfg), proxy
}

func (s *testService) throughProxy() (*pgxpool.Pool, *pgtest.Proxy) {
	s.t.Helper()
	proxy := pgtest.NewProxy(s.t, s.URL)
	config, err := pgxpool.ParseConfig(proxy.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = s.Schema
	pool, err := pgxpool.NewWithConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool, proxy
}

func pay(amount string) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: rand.Text()},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(amount))},
	}
}

// insertPayment returns a handler that inserts a payment and appends its event.
func insertPayment(r idempotency.Request) pgstore.Handler {
	return func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		if _, err := tx.Exec(ctx, "insert into payment (key, amount) values ($1, 100)", r.Key.Value); err != nil {
			return idempotency.Result{}, err
		}
		if err := outbox.Append(ctx, tx, event.Event{
			Topic: "payments", Key: r.Key.Value, Type: "PaymentCreated",
			Payload: []byte("{}"),
		}); err != nil {
			return idempotency.Result{}, err
		}
		return created(r), nil
	}
}

func created(r idempotency.Request) idempotency.Result {
	return idempotency.Result{
		Code: 201, Header: map[string][]string{
			"Content-Type": {"application/json"},
			"Location":     {"/payments/" + r.Key.Value},
		},
		Body: []byte(`{"amount":100}`), Resource: r.Key.Value, Schema: 2,
	}
}

// requireResult compares two results.
func (s *testService) requireResult(got, want idempotency.Result) {
	s.t.Helper()
	if got.Code != want.Code || string(got.Body) != string(want.Body) || got.Resource != want.Resource ||
		got.Schema != want.Schema ||
		got.Failure != want.Failure || len(got.Header) != len(want.Header) {
		s.t.Errorf("answered %+v, want %+v", got, want)
	}
	for name := range want.Header {
		if got.Header[name][0] != want.Header[name][0] {
			s.t.Errorf("header %s: %q, want %q", name, got.Header[name], want.Header[name])
		}
	}
}

// requirePayments checks the number of a key's payments and events.
func (s *testService) requirePayments(r idempotency.Request, want int) {
	s.t.Helper()
	payments := pgtest.One[int](s.t, s.DB, "select count(*) from payment where key = $1", r.Key.Value)
	events := pgtest.One[int](s.t, s.DB, "select count(*) from outbox_event where key = $1", r.Key.Value)
	if payments != want || events != want {
		s.t.Errorf("%d payments and %d events, want %d of each", payments, events, want)
	}
}

// requireNoKey checks that there is no record of a key, and that nobody holds it any more, as a backend whose client is
// gone does for a moment.
func (s *testService) requireNoKey(r idempotency.Request) {
	s.t.Helper()
	pgtest.Await(s.t, "a free key", func() (bool, error) {
		_, there, err := s.store.Get(s.t.Context(), r.Key)
		return !there, err
	})
}

func (s *testService) requireError(err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Errorf("got %v, want %v", err, want)
	}
}

// runConcurrently makes n concurrent calls and returns their results.
func runConcurrently(n int, call func(i int) (idempotency.Result, error)) ([]idempotency.Result, []error) {
	results, errs := make([]idempotency.Result, n), make([]error, n)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			results[i], errs[i] = call(i)
		})
	}
	close(begin)
	wg.Wait()
	return results, errs
}
