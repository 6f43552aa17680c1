// Command firsthour is the program of docs/first-hour.md: it takes payments over HTTP and books each once. It needs a
// Postgres, a Kafka with the topic "payments" and a relay, as cmd/relay-dev starts them.
package main

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/process"
)

//go:embed schema.sql
var schema string

func main() { os.Exit(process.Main(start)) }

func start(ctx context.Context) error {
	env, address := process.NewEnv(""), "127.0.0.1:8080"
	db, kafka := env.Pool(), env.Kafka()
	env.Set("LISTEN", &address)
	if err := env.Err(); err != nil {
		return err
	}
	defer db.Close()
	listener, err := process.Listen(address)
	if err != nil {
		return err
	}
	return run(ctx, db, kafka, "payments", listener)
}

// Payment is what a client asks for.
type Payment struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

// Made is the payload of the event, and the answer to the client.
type Made struct {
	ID string `json:"id"`
	Payment
}

type shop struct {
	db    *pgxpool.Pool
	keys  *pgstore.Store
	topic string
}

func (s shop) pay(w http.ResponseWriter, r *http.Request) (res idempotency.Result, err error) {
	key, err := httpedge.Key(r)
	if err != nil {
		return res, err
	}
	var p Payment
	if err := httpedge.Decode(w, r, 64<<10, &p); err != nil {
		return res, err
	}
	if p.Account == "" || p.Amount <= 0 {
		return res, &httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "want an account and a positive amount"}
	}
	req, err := idempotency.NewRequest(idempotency.Key{Operation: "payment.make", Value: key}, p)
	if err != nil {
		return res, err
	}
	return s.keys.InTx(r.Context(), req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		made, err := record(ctx, tx, s.topic, p)
		if err != nil {
			return idempotency.Result{}, err
		}
		return httpedge.JSON(http.StatusCreated, made)
	})
}

// record writes the payment and appends its event.
func record(ctx context.Context, tx pgx.Tx, topic string, p Payment) (Made, error) {
	made := Made{ID: event.NewID().String(), Payment: p}
	const insert = "insert into payment (id, account, amount) values ($1, $2, $3)"
	if _, err := tx.Exec(ctx, insert, made.ID, p.Account, p.Amount); err != nil {
		return made, err
	}
	e, err := event.NewJSON(event.Event{Topic: topic, Key: p.Account, Type: "PaymentMade"}, made)
	if err != nil {
		return made, err
	}
	return made, outbox.Append(ctx, tx, e)
}

// book is the effect. tx also records the event's id.
func book(ctx context.Context, tx pgx.Tx, _ event.Event, p Made) error {
	const insert = "insert into booking (payment, account, amount) select $1, name, $3 from account where name = $2"
	tag, err := tx.Exec(ctx, insert, p.ID, p.Account, p.Amount)
	if err == nil && tag.RowsAffected() == 0 {
		return outcome.Terminal("no_account", errors.New("the ledger has no such account"))
	}
	return err
}

// open opens an account.
func (s shop) open(w http.ResponseWriter, r *http.Request) {
	const insert = "insert into account (name) values ($1) on conflict do nothing"
	_, err := s.db.Exec(r.Context(), insert, r.PathValue("name"))
	httpedge.Write(w, idempotency.Result{Code: http.StatusNoContent}, err)
}

// balance is what was booked.
func (s shop) balance(w http.ResponseWriter, r *http.Request) {
	var booked struct {
		Bookings int   `json:"bookings"`
		Balance  int64 `json:"balance"`
	}
	const sum = "select count(*), coalesce(sum(amount), 0)::bigint from booking where account = $1"
	err := s.db.QueryRow(r.Context(), sum, r.PathValue("name")).Scan(&booked.Bookings, &booked.Balance)
	var res idempotency.Result
	if err == nil {
		res, err = httpedge.JSON(http.StatusOK, booked)
	}
	httpedge.Write(w, res, err)
}

// newLedger is the consumer's side: deduplication around the effect.
func newLedger(db *pgxpool.Pool, cfg inbox.Config) (*inbox.Inbox, inbox.Handler, error) {
	in, err := inbox.New(db, "ledger", cfg)
	if err != nil {
		return nil, nil, err
	}
	return in, in.Each(inbox.JSON("PaymentMade", book)), nil
}

// prepare creates all tables.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	if err := migrations.Up(ctx, db.Config().ConnConfig, migrations.Options{}); err != nil {
		return err
	}
	_, err := db.Exec(ctx, schema)
	return err
}

func run(ctx context.Context, db *pgxpool.Pool, kafka process.Kafka, topic string, listener net.Listener) error {
	keys, err := pgstore.New(db, pgstore.Config{})
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	figures, err := metrics.NewWorker(registry, "ledger")
	if err != nil {
		return err
	}
	in, handler, err := newLedger(db, inbox.Config{Observer: figures.Inbox()})
	if err != nil {
		return err
	}
	consume, err := consumer.New(handler, kafka.Brokers, []string{topic},
		consumer.Config{Dial: kafka.Dial, SASL: kafka.SASL, Observer: figures.Consumer()})
	if err != nil {
		return err
	}
	health := process.Health{
		Prepare: func(ctx context.Context) error { return prepare(ctx, db) }, Ready: db.Ping,
		Moving: process.Moving(consume), Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
	}
	return health.Run(ctx, listener, shop{db, keys, topic}.routes(), in.Run, consume.Run,
		func(ctx context.Context) error { return figures.Run(ctx, in, consume) })
}

func (s shop) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		res, err := s.pay(w, r)
		httpedge.Write(w, res, err) // the first answer, or its replay
	})
	mux.HandleFunc("PUT /accounts/{name}", s.open)
	mux.HandleFunc("GET /accounts/{name}", s.balance)
	return mux
}
