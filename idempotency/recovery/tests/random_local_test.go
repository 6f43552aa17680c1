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
)

// TestRandom_Middleware: the histories of TestRandom_HistoriesWithCrashes with handlers behind the middleware, which
// know no keys. Each inserts a row into another database than the store's, or refuses, or fails before or after its
// COMMIT.
func TestRandom_Middleware(t *testing.T) {
	t.Parallel()
	inMemory(t, func(r *randomRun) {
		rows := map[idempotency.Key][]string{} // under mu
		r.http = func(p *process, g *guard.Guard) http.Handler { return r.unaware(p, g, rows) }
		r.effects = func(k idempotency.Key) []int { return []int{len(rows[k])} }
		r.handler = recovery.Handler{ProbeLocal: func(_ context.Context, rec store.Record) (recovery.ProbeOutcome,
			idempotency.Result, error,
		) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if there := rows[rec.Key]; len(there) > 0 {
				return recovery.Happened, idempotency.Result{Code: http.StatusCreated, Body: []byte(there[0])}, nil
			}
			return recovery.NotHappened, idempotency.Result{}, nil
		}}
		r.cfg.Rerun, r.recovery.MaxAttempts = nil, -1
		if r.roll(2) == 0 {
			r.cfg.Rerun = []string{r.operation}
		}
	})
}

// unaware is a handler behind the middleware. What it inserted before it finds again.
func (r *randomRun) unaware(p *process, g *guard.Guard, rows map[idempotency.Key][]string) http.Handler {
	cfg := httpedge.Config{
		Edge: httpedge.Edge{Logger: quiet}, Operation: func(*http.Request) string { return r.operation },
		Fingerprint: func(_ *http.Request, body []byte) idempotency.Fingerprint {
			return r.request("", body[0]-'a').Fingerprint
		},
	}
	one := func(*http.Request) (string, error) { return request().Key.Tenant, nil }
	return httpedge.Middleware(g, one, cfg)(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		req := r.read(hr)
		r.pass(3 * time.Second)
		p.reach()
		if p.deaf {
			r.pass(6 * time.Second)
		}
		status, body := r.transaction(hr.Context(), p, req, rows)
		r.pass(3 * time.Second)
		p.reach()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
}

// transaction is a handler's, which a context that has ended rolls back.
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
	if there := rows[req.Key]; len(there) > 0 {
		return http.StatusCreated, there[0]
	}
	switch n := r.random.IntN(12); {
	case n < 2: // also when the lease has ended: that needs no COMMIT
		return http.StatusPaymentRequired, "declined"
	case ctx.Err() != nil, n == 2:
		return http.StatusServiceUnavailable, "rolled back"
	case n == 3:
		return http.StatusInternalServerError, "the COMMIT was lost"
	default:
		made := fmt.Sprintf("row %d of %s", r.random.IntN(1e6), req.Input)
		rows[req.Key] = append(rows[req.Key], made)
		if n == 4 {
			return http.StatusInternalServerError, "the reply to COMMIT was lost"
		}
		return http.StatusCreated, made
	}
}

// TestRandom_InTx: likewise with handlers whose key and row are one transaction, over connections that fail at a
// statement or at any time. There is nothing to recover.
func TestRandom_InTx(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	db.Exec(t, "create table made (key text not null, command text not null)")
	direct, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	overServer(t, server, 8, 4, func(t *testing.T, r *randomRun) {
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
			if p.Recoverable == nil { // who comes last
				return r.inTx(p, direct)
			}
			return r.inTx(p, failing)
		}
		r.effects = func(k idempotency.Key) []int {
			return []int{pgtest.One[int](t, db, "select count(*) from made where key = $1", k.Operation+k.Value)}
		}
		ctx, cancel := context.WithTimeout(t.Context(), r.real(r.span))
		t.Cleanup(cancel)
		words := []string{
			"-- pgstore: begin", "-- pgstore: get", "-- pgstore: lock", "insert into made",
			"-- pgstore: write", "-- pgstore: commit", "-- pgstore: commit", "-- pgstore: roll back",
		}
		for range 2 {
			r.pending.Go(func() { r.disturb(ctx, proxy, words) })
		}
		r.pending.Go(func() {
			for ctx.Err() == nil {
				r.pass(20 * time.Second)
				proxy.CutAll()
			}
		})
	})
}

// inTx is a handler with one transaction. It inserts first, and then may refuse, fail, or die.
func (r *randomRun) inTx(p *process, s *pgstore.Store) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		req := r.read(hr)
		n := r.roll(16)
		res, err := s.InTx(hr.Context(), req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			if n < 8 {
				r.pass(3 * time.Second)
			}
			_, err := tx.Exec(ctx, "insert into made (key, command) values ($1, $2)", req.Key.Operation+req.Key.Value,
				string(req.Input))
			switch {
			case err != nil:
				return idempotency.Result{}, err
			case n == 0:
				return idempotency.Result{}, idempotency.Retryable(errors.New("busy"))
			case n == 1:
				return idempotency.Result{}, errors.New("no luck")
			case n == 2:
				runtime.Goexit()
			case n < 6:
				return idempotency.Result{Code: http.StatusPaymentRequired},
					idempotency.Terminal("card_declined", errors.New("no"))
			}
			p.reach()
			return idempotency.Result{Code: http.StatusCreated, Body: fmt.Appendf(nil, "%d of %s", r.roll(1e6),
				req.Input)}, nil
		})
		httpedge.Edge{Logger: quiet}.Write(w, res, err)
	})
}
