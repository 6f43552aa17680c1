package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/internal/netcut"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// provider takes charges for both regions and has a ledger of its own. A key that it knows is answered and not booked
// again.
type provider struct {
	mu     sync.Mutex
	ledger map[string]int // charges by downstream key
	asked  int
}

func (p *provider) charge(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.ledger[key] = 1
}

func (p *provider) booked() (charges, asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ledger), p.asked
}

// region is a service with a database of its own.
type region struct {
	*testService
	name     string
	provider *provider
	guard    *guard.Guard
	server   *httptest.Server
}

// pays inserts the payment and charges the card, with a downstream key that is the same in every region.
func (at *region) pays(ctx context.Context, r idempotency.Request) (idempotency.Result, error) {
	return at.guard.Run(ctx, r, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		if _, err := op.Local(ctx, "payment", func(ctx context.Context, _ guard.Call) ([]byte, error) {
			return nil, pgx.BeginFunc(ctx, at.Pool, func(tx pgx.Tx) error {
				_, err := insertPayment(r)(ctx,
					tx)
				return err
			})
		}); err != nil {
			return idempotency.Result{}, err
		}
		if _, err := op.Call(ctx, "charge", func(_ context.Context, c guard.Call) ([]byte, error) {
			at.provider.charge(c.Key)
			return nil, nil
		}); err != nil {
			return idempotency.Result{}, err
		}
		return created(r), nil
	})
}

func keyOf(r *http.Request) (idempotency.Key, error) {
	value, err := httpedge.Key(r)
	return idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: value}, err
}

func (at *region) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k, err := keyOf(r)
	if err != nil {
		httpedge.Write(w, idempotency.Result{}, err)
		return
	}
	res, err := at.pays(r.Context(), idempotency.Request{Key: k})
	httpedge.Write(w, res, err)
}

// regionPair is two regions, each behind its edge, and the wire between them.
type regionPair struct {
	t        *testing.T
	eu, us   *region
	wire     *netcut.Proxy // from us to eu
	provider *provider
	client   *http.Client
}

// newRegionPair: routed regions check the homes of keys; with homes they forward requests.
func newRegionPair(t *testing.T, routed, forward bool) *regionPair {
	t.Helper()
	w := &regionPair{
		t: t, provider: &provider{ledger: map[string]int{}}, client: &http.Client{Transport: &http.Transport{}},
	}
	w.eu, w.us = w.region("eu1"), w.region("us1")
	quiet := httpedge.Edge{Logger: slog.New(slog.DiscardHandler)}
	between := &http.Transport{DisableKeepAlives: true}
	serve := func(at, other *region, addr string) {
		handler := http.Handler(at)
		if routed {
			homes := map[string]http.Handler{}
			if forward {
				homes[other.name] = quiet.Forward(&url.URL{Scheme: "http", Host: addr}, between)
			}
			regions := keys.Regions{Here: at.name, Known: []string{"eu1", "us1"}, Default: "eu1"}
			handler = quiet.Region(regions, keyOf, homes, at)
		}
		at.server.Config.Handler = handler
	}
	w.wire = netcut.New(t, w.eu.server.Listener.Addr().String())
	serve(w.eu, w.us, w.us.server.Listener.Addr().String())
	serve(w.us, w.eu, w.wire.Addr())
	for _, at := range []*region{w.eu, w.us} {
		at.server.Start()
		t.Cleanup(at.server.Close)
	}
	t.Cleanup(w.client.CloseIdleConnections)
	t.Cleanup(between.CloseIdleConnections)
	return w
}

func (w *regionPair) region(name string) *region {
	db := pgtest.NewDatabase(w.t, "idempotency", "outbox")
	db.Exec(w.t, "create table payment (id bigint generated always as identity primary key, key text not null, "+
		"amount int not null)")
	at := &region{
		testService: &testService{DB: db, t: w.t}, name: name, provider: w.provider,
		server: httptest.NewUnstartedServer(nil),
	}
	at.store = at.open(db.Pool, pgstore.Config{})
	guard, err := guard.New(at.store, guard.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	at.guard = guard
	return at
}

// post sends a payment to a region, and returns the status, the problem's code and home, and whether it was replayed.
func (w *regionPair) post(to *region, key string) (status int, p httpedge.Problem, replayed bool) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, to.server.URL+"/payments", http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set(httpedge.HeaderKey, key)
	res, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= 400 {
		if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
			w.t.Fatal(err)
		}
	}
	return res.StatusCode, p, res.Header.Get(httpedge.HeaderReplayed) == "true"
}

// requireCounts checks the numbers of payments in each region, and of the provider's calls and charges.
func (w *regionPair) requireCounts(eu, us, charges, asked int) {
	w.t.Helper()
	payments := func(at *region) int { return pgtest.One[int](w.t, at.DB, "select count(*) from payment") }
	gotCharges, gotAsked := w.provider.booked()
	if e, u := payments(w.eu), payments(w.us); e != eu || u != us || gotCharges != charges || gotAsked != asked {
		w.t.Errorf("%d payments in eu1 and %d in us1, %d charges, the provider asked %d times; want %d, %d, %d, %d", e,
			u, gotCharges, gotAsked, eu, us, charges, asked)
	}
}

// TestRegions_WithoutRouting: a table protects only its own region: the payment is made in both, and only the
// provider's key prevents a second charge.
func TestRegions_WithoutRouting(t *testing.T) {
	t.Parallel()
	w := newRegionPair(t, false, false)
	for _, at := range []*region{w.eu, w.us} {
		if status, _, replayed := w.post(at, "eu1.k"); status != 201 || replayed {
			t.Errorf("%s: %d, replayed %v", at.name, status, replayed)
		}
	}
	w.requireCounts(1, 1, 1, 2)
}

// TestRegions_WrongRegionAnswers421: with the home region, and without an effect. The client's retry there is executed.
func TestRegions_WrongRegionAnswers421(t *testing.T) {
	t.Parallel()
	w := newRegionPair(t, true, false)
	for range 2 {
		status, p, _ := w.post(w.us, "eu1.k")
		if status != http.StatusMisdirectedRequest || p.Code != httpedge.CodeWrongRegion || p.HomeRegion != "eu1" {
			t.Errorf("%d, %+v", status, p)
		}
	}
	w.requireCounts(0, 0, 0, 0)
	for n := range 2 {
		if status, _, replayed := w.post(w.eu, "eu1.k"); status != 201 || replayed != (n > 0) {
			t.Errorf("%d, replayed %v", status, replayed)
		}
	}
	if status, p, _ := w.post(w.us, "eu1.k"); status != 421 {
		t.Errorf("%d, %+v", status, p)
	}
	w.requireCounts(1, 0, 1, 1)
	// A key of its own region, and one of the default's.
	for key, want := range map[string]int{"us1.k": 201, "k": 421} {
		if status, p, _ := w.post(w.us, key); status != want {
			t.Errorf("%s: %d, %+v", key, status, p)
		}
	}
	w.requireCounts(1, 1, 2, 2)
}

// TestRegions_AnotherRegionRetries: requests to any region are executed at home, once.
func TestRegions_AnotherRegionRetries(t *testing.T) {
	t.Parallel()
	w := newRegionPair(t, true, true)
	for n, at := range []*region{w.us, w.eu, w.us} {
		if status, p, replayed := w.post(at, "eu1.k"); status != 201 || replayed != (n > 0) {
			t.Errorf("%s: %d, %+v, replayed %v", at.name, status, p, replayed)
		}
	}
	if status, p, _ := w.post(w.eu, "us1.k"); status != 201 {
		t.Errorf("%d, %+v", status, p)
	}
	w.requireCounts(1, 1, 2, 2)
}

// TestRegions_Cut: the connection to the home region is cut, before the request or before its answer. The other region
// never executes the request itself; after the cut the same key gets the one answer.
func TestRegions_Cut(t *testing.T) {
	t.Parallel()
	w := newRegionPair(t, true, true)
	for _, c := range []struct {
		key  string
		cut  func(testing.TB) func()
		done int // payments that the home has made all the same
	}{{"eu1.before", w.wire.Cut, 0}, {"eu1.after", w.wire.DropReplies, 1}} {
		before := pgtest.One[int](t, w.eu.DB, "select count(*) from payment")
		heal := c.cut(t)
		for range 2 {
			if status, p, _ := w.post(w.us, c.key); status != 503 || p.Code != httpedge.CodeUnknown {
				t.Errorf("%s: %d, %+v", c.key, status, p)
			}
		}
		pgtest.AwaitSQL(t, w.eu.DB, "select count(*) = $1 from payment", before+c.done)
		heal()
		// An attempt whose answer was cut may still be at it.
		pgtest.Await(t, "an answer", func() (bool, error) {
			status, p, _ := w.post(w.us, c.key)
			if status != 201 && status != 503 && p.Code != httpedge.CodeInProgress {
				t.Fatalf("%s: %d, %+v", c.key, status, p)
			}
			return status == 201, nil
		})
	}
	w.requireCounts(2, 0, 2, 2)
}

// TestRegions_HomeMoves: a region becomes the home of another's keys, without its table. Finished requests are executed
// a second time, and only a business key that is the same in both regions prevents it: the provider's.
func TestRegions_HomeMoves(t *testing.T) {
	t.Parallel()
	w := newRegionPair(t, true, true)
	if status, _, _ := w.post(w.us, "eu1.k"); status != 201 {
		t.Fatal(status)
	}
	w.wire.Cut(t)
	moved := keys.Regions{Here: "us1", Known: []string{"eu1", "us1"}, TenantHome: func(string) string { return "us1" }}
	r := idempotency.Request{Key: idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: "eu1.k"}}
	if err := moved.Check(r.Key); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if res, err := w.us.pays(ctx, r); err != nil || res.Replayed {
		t.Errorf("%+v, %v", res, err)
	}
	w.requireCounts(1, 1, 1, 2)
	// The former home refuses what it no longer owns, as soon as it knows.
	moved.Here = "eu1"
	if err := moved.Check(r.Key); !errors.Is(err, keys.ErrWrongRegion) {
		t.Error(err)
	}
}
