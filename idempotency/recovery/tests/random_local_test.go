package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestRandom_Middleware: the histories of TestRandom_HistoriesWithCrashes with handlers behind the middleware, which
// know no keys. Each inserts a row into another database than the store's, or refuses, or fails before or after its
// COMMIT.
func TestRandom_Middleware(t *testing.T) {
	t.Parallel()
	runInMemory(t, func(r *randomRun) {
		rows := map[idempotency.Key][]string{} // under mu
		r.http = func(p *process, g *guard.Guard) http.Handler { return r.middlewareHandler(p, g, rows) }
		r.effects = func(k idempotency.Key) []int { return []int{len(rows[k])} }
		r.handler = recovery.Handler{ProbeLocal: func(_ context.Context, rec store.Record) (recovery.ProbeOutcome,
			idempotency.Result, error,
		) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if existing := rows[rec.Key]; len(existing) > 0 {
				return recovery.Happened, idempotency.Result{Code: http.StatusCreated, Body: []byte(existing[0])}, nil
			}
			return recovery.NotHappened, idempotency.Result{}, nil
		}}
		r.cfg.Rerun, r.recovery.MaxAttempts = nil, -1
		if r.roll(2) == 0 {
			r.cfg.Rerun = []string{r.operation}
		}
	})
}

// middlewareHandler returns a handler behind the middleware. It returns an earlier row of its key.
func (r *randomRun) middlewareHandler(p *process, g *guard.Guard, rows map[idempotency.Key][]string) http.Handler {
	cfg := httpedge.Config{
		Edge: httpedge.Edge{Logger: quiet}, Operation: func(*http.Request) string { return r.operation },
		Fingerprint: func(_ *http.Request, body []byte) idempotency.Fingerprint {
			return r.request("", body[0]-'a').Fingerprint
		},
	}
	tenant := func(*http.Request) (string, error) { return request().Key.Tenant, nil }
	return httpedge.Middleware(g, tenant, cfg)(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		req := r.read(hr)
		r.randomPause(3 * time.Second)
		p.step()
		if p.noHeartbeat {
			r.randomPause(6 * time.Second)
		}
		status, body := r.transaction(hr.Context(), p, req, rows)
		r.randomPause(3 * time.Second)
		p.step()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
}

// transaction runs a handler's transaction, which an ended context rolls back.
func (r *randomRun) transaction(ctx context.Context, p *process, req idempotency.Request,
	rows map[idempotency.Key][]string,
) (status int, body string) {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if existing := rows[req.Key]; len(existing) > 0 {
		return http.StatusCreated, existing[0]
	}
	switch n := r.random.IntN(12); {
	case n < 2: // even after the end of the lease, because it needs no COMMIT
		return http.StatusPaymentRequired, "declined"
	case ctx.Err() != nil, n == 2:
		return http.StatusServiceUnavailable, "rolled back"
	case n == 3:
		return http.StatusInternalServerError, "the COMMIT was lost"
	default:
		row := fmt.Sprintf("row %d of %s", r.random.IntN(1e6), req.Input)
		rows[req.Key] = append(rows[req.Key], row)
		if n == 4 {
			return http.StatusInternalServerError, "the reply to COMMIT was lost"
		}
		return http.StatusCreated, row
	}
}

// TestRandom_InTx: likewise with handlers whose key and row are one transaction, over connections that fail at a
// statement or at any time. There is nothing to recover.
func TestRandom_InTx(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	db.Exec(t, "create table payment (key text not null, command text not null)")
	direct, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	runOverServer(t, server, 8, 4, func(t *testing.T, r *randomRun) {
		proxy := pgtest.NewProxy(t, db.URL)
		pool, err := pgxpool.New(t.Context(), proxy.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		failing, err := pgstore.New(pool, pgstore.Config{Wait: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		r.store, r.open = direct, func() store.Recoverable { return direct }
		r.http = func(p *process, _ *guard.Guard) http.Handler {
			if p.Recoverable == nil { // the last retries
				return r.inTx(p, direct)
			}
			return r.inTx(p, failing)
		}
		r.effects = func(k idempotency.Key) []int {
			return []int{pgtest.One[int](t, db, "select count(*) from payment where key = $1", k.Operation+k.Value)}
		}
		ctx, cancel := context.WithTimeout(t.Context(), r.real(r.duration))
		t.Cleanup(cancel)
		words := []string{
			"-- pgstore: begin", "-- pgstore: get", "-- pgstore: lock", "insert into payment",
			"-- pgstore: write", "-- pgstore: commit", "-- pgstore: commit", "-- pgstore: roll back",
		}
		for range 2 {
			r.lateCalls.Go(func() { r.injectFaults(ctx, proxy, words) })
		}
		r.lateCalls.Go(func() {
			for ctx.Err() == nil {
				r.randomPause(20 * time.Second)
				proxy.CutAll()
			}
		})
	})
}

// inTx returns a handler with one transaction. It inserts a row, and then may refuse, fail, or crash.
func (r *randomRun) inTx(p *process, s *pgstore.Store) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		req := r.read(hr)
		n := r.roll(16)
		res, err := s.InTx(hr.Context(), req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			if n < 8 {
				r.randomPause(3 * time.Second)
			}
			_, err := tx.Exec(ctx, "insert into payment (key, command) values ($1, $2)",
				req.Key.Operation+req.Key.Value,
				string(req.Input))
			switch {
			case err != nil:
				return idempotency.Result{}, err
			case n == 0:
				return idempotency.Result{}, outcome.Retryable(errors.New("busy"))
			case n == 1:
				return idempotency.Result{}, errors.New("unclassified")
			case n == 2:
				runtime.Goexit()
			case n < 6:
				return idempotency.Result{Code: http.StatusPaymentRequired},
					outcome.Terminal("card_declined", errors.New("no"))
			}
			p.step()
			return idempotency.Result{Code: http.StatusCreated, Body: fmt.Appendf(nil, "%d of %s", r.roll(1e6),
				req.Input)}, nil
		})
		httpedge.Edge{Logger: quiet}.Write(w, res, err)
	})
}
