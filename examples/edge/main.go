// Command edge is the smallest idempotent HTTP service; its handler is the code in section "A complete service" of
// docs/idempotency.md: POST /orders with an Idempotency-Key creates one order, however often it is sent. It needs a
// Postgres.
package main

import (
	"context"
	"net"
	"net/http"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/process"
)

func main() { os.Exit(process.Main(start)) }

func start(ctx context.Context) error {
	env, address := process.NewEnv(""), "127.0.0.1:8080"
	db := env.Pool()
	env.Set("LISTEN", &address)
	if err := env.Err(); err != nil {
		return err
	}
	defer db.Close()
	listener, err := process.Listen(address)
	if err != nil {
		return err
	}
	return run(ctx, db, listener)
}

// docs:begin

// Order is the command. All requests with one key must have the same.
type Order struct {
	Item   string `json:"item"`
	Amount int64  `json:"amount"`
}

type shop struct{ keys *pgstore.Store }

func (s shop) create(w http.ResponseWriter, r *http.Request) {
	res, err := s.order(w, r)
	httpedge.Write(w, res, err) // the first answer, a replay of it, or a problem with a stable code
}

func (s shop) order(w http.ResponseWriter, r *http.Request) (res idempotency.Result, err error) {
	// 1. Validate: an invalid request leaves no record.
	key, err := httpedge.Key(r)
	if err != nil {
		return res, err
	}
	var o Order
	if err := httpedge.Decode(w, r, 64<<10, &o); err != nil { // rejects unknown and repeated members
		return res, err
	}
	if o.Item == "" || o.Amount <= 0 {
		return res, &httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "want an item and a positive amount"}
	}
	// 2. The key, scoped by tenant (from your authentication) and operation, with the command's fingerprint.
	req, err := idempotency.NewRequest(idempotency.Key{Tenant: "acme", Operation: "order.create", Value: key}, o)
	if err != nil {
		return res, err
	}
	// 3. Key and order in one transaction. It commits once per key; every other request gets its result.
	return s.keys.InTx(r.Context(), req, func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
		id := uuid.NewString()
		const insert = "insert into orders (id, item, amount) values ($1, $2, $3)"
		if _, err := tx.Exec(ctx, insert, id, o.Item, o.Amount); err != nil {
			return res, err // rolls back: in InTx the key is free again
		}
		return httpedge.JSON(http.StatusCreated, map[string]any{"id": id, "item": o.Item, "amount": o.Amount})
	})
}

// docs:end

func run(ctx context.Context, db *pgxpool.Pool, listener net.Listener) error {
	keys, err := pgstore.New(db, pgstore.Config{}) // answers are kept for 24 hours, keys for 72
	if err != nil {
		return err
	}
	sweeper := pgstore.Sweeper{Store: keys} // deletes expired answers and keys; so does a recovery.Worker
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", shop{keys}.create)
	// Until the tables are there, a request is answered with 503 and Retry-After. A signal ends ctx: requests that are
	// under way have 20 seconds to finish.
	health := process.Health{
		Prepare: func(ctx context.Context) error { return prepare(ctx, db) }, Ready: db.Ping,
	}
	return health.Run(ctx, listener, mux, sweeper.Run)
}

// prepare creates the tables.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	sets := []migrations.Set{migrations.Idempotency}
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{Sets: sets}); err != nil {
		return err
	}
	_, err := db.Exec(ctx, "create table if not exists orders (id text primary key, item text, amount bigint)")
	return err
}
