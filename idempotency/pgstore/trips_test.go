package pgstore_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// tripCounter counts how often a connection turns from writing to reading: its round trips.
type tripCounter struct {
	net.Conn
	count *atomic.Int64
	wrote atomic.Bool // a write that takes long is read beside
}

func (c *tripCounter) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *tripCounter) Read(b []byte) (int, error) {
	if c.wrote.Swap(false) {
		c.count.Add(1)
	}
	return c.Conn.Read(b)
}

// TestInTx_RoundTrips: a handler's transaction takes no more round trips with a key than without; a replay takes two, a
// refusal as many as a success.
func TestInTx_RoundTrips(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	var count atomic.Int64
	cfg, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // as on a fast machine
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &tripCounter{Conn: conn, count: &count}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	keys := s.open(pool, pgstore.Config{})
	measure := func(what string, do func() error) (n int64) {
		t.Helper()
		for range 3 { // statements are prepared at first
			before := count.Load()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			n = count.Load() - before
		}
		t.Logf("%s: %d round trips", what, n)
		return n
	}
	without := measure("without a key", func() error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := insertPayment(pay("100"))(t.Context(), tx)
			return err
		})
	})
	with := measure("with a key", func() error {
		r := pay("100")
		_, err := keys.InTx(t.Context(), r, insertPayment(r))
		return err
	})
	refused := measure("refused", func() error {
		r := pay("100")
		_, err := keys.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			res, err := insertPayment(r)(ctx, tx)
			return res, outcome.Terminal("no", errOr(err))
		})
		return err
	})
	r := pay("100")
	if _, err := keys.InTx(t.Context(), r, insertPayment(r)); err != nil {
		t.Fatal(err)
	}
	replay := measure("replayed", func() error {
		_, err := keys.InTx(t.Context(), r, insertPayment(r))
		return err
	})
	claim := measure("claimed and finished by a guard's calls", func() error {
		c, err := keys.Claim(t.Context(), pay("100"), store.ClaimOptions{Token: "t", Lease: 1e9})
		if err != nil {
			return err
		}
		return keys.Finish(t.Context(), c.Lease, idempotency.Result{Code: 201}, idempotency.Retention{})
	})
	if without < 3 || with > without || refused > without || replay > 2 || claim > 2 {
		t.Errorf("round trips: %d without, %d with, %d refused, %d replayed, %d claimed and finished", without, with,
			refused, replay, claim)
	}
}

func errOr(err error) error {
	if err == nil {
		return net.ErrClosed // any
	}
	return err
}

// TestInTx_WritesItsRowOnce: with the result. No update leaves a dead row for vacuum.
func TestInTx_WritesItsRowOnce(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	const n = 20
	for i := range n {
		r := pay("100")
		if _, err := s.store.InTx(t.Context(), r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			res, err := insertPayment(r)(ctx, tx)
			if i%2 == 0 && err == nil {
				err = outcome.Terminal("no", errOr(nil))
			}
			return res, err
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.Pool.Reset() // a backend says what it did when it leaves
	pgtest.AwaitSQL(t, s.DB, "select n_tup_ins >= $1 from pg_stat_all_tables where relid = 'idempotency_key'::regclass",
		n)
	if more := pgtest.One[int](t, s.DB, "select n_tup_ins - $1 + n_tup_upd + n_tup_del from pg_stat_all_tables where "+
		"relid = 'idempotency_key'::regclass", n); more != 0 {
		t.Errorf("%d writes more than rows", more)
	}
}
