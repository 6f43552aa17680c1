// Command edge is the smallest idempotent HTTP service, and the code of docs/idempotency.md's "Begin": POST /orders
// with an Idempotency-Key makes one order, however often it is sent. It expects a Postgres.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/migrations"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		err = run(ctx, os.Getenv("DATABASE_URL"), listener)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// docs:begin

// Order is the validated command: two requests with one key must ask for the same one.
type Order struct {
	Item   string `json:"item"`
	Amount int64  `json:"amount"`
}

type shop struct{ keys *pgstore.Store }

func (s shop) create(w http.ResponseWriter, r *http.Request) {
	res, err := s.order(w, r)
	httpedge.Write(w, res, err) // the answer, the first one again, or a problem with a stable code
}

func (s shop) order(w http.ResponseWriter, r *http.Request) (res idempotency.Result, err error) {
	// 1. What can be refused without looking anything up: no record is made of it.
	key, err := httpedge.Key(r)
	if err != nil {
		return res, err
	}
	var o Order
	if err := httpedge.Decode(w, r, 64<<10, &o); err != nil { // each member once, as it is spelled here, and no other
		return res, err
	}
	if o.Item == "" || o.Amount <= 0 {
		return res, &httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "want an item and a positive amount"}
	}
	// 2. The key, in the scope of who asks (from your authentication) and what is asked, with the command's
	//    fingerprint.
	req, err := idempotency.NewRequest(idempotency.Key{Tenant: "acme", Operation: "order.create", Value: key}, o)
	if err != nil {
		return res, err
	}
	// 3. Key and order in one transaction. It runs once for a key; everybody else is told what became of it.
	return s.keys.InTx(r.Context(), req, func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
		id := uuid.NewString()
		const insert = "insert into orders (id, item, amount) values ($1, $2, $3)"
		if _, err := tx.Exec(ctx, insert, id, o.Item, o.Amount); err != nil {
			return res, err // rolled back: the key is free again
		}
		return httpedge.JSON(http.StatusCreated, map[string]any{"id": id, "item": o.Item, "amount": o.Amount})
	})
}

func run(ctx context.Context, databaseURL string, listener net.Listener) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	sets := []migrations.Set{migrations.Idempotency}
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{Sets: sets}); err != nil {
		return err
	}
	const orders = "create table if not exists orders (id text primary key, item text, amount bigint)"
	if _, err := db.Exec(ctx, orders); err != nil {
		return err
	}
	keys, err := pgstore.New(db, pgstore.Config{}) // answers are kept for 24 hours, keys for 72
	if err != nil {
		return err
	}
	// removes what is no longer kept; where there are providers, a recovery.Worker does
	sweeper := pgstore.Sweeper{Store: keys}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", shop{keys}.create)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return sweeper.Run(ctx) })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Shutdown(context.WithoutCancel(ctx))
	})
	return group.Wait()
}

// docs:end
