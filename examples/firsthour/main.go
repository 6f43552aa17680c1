// Command firsthour is the program of docs/first-hour.md: it takes payments over HTTP and books each once. It needs a
// Postgres, a Kafka with the topic "payments" and a relay, as cmd/relay-dev starts them.
package main

import (
	"context"
	_ "embed"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

//go:embed schema.sql
var schema string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
		err = run(ctx, os.Getenv("DATABASE_URL"), brokers, "payments", listener)
	}
	if err != nil {
		log.Fatal(err)
	}
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
	e, err := event.JSON(topic, p.Account, "PaymentMade", made)
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
		return inbox.Terminal("no_account", errors.New("the ledger has no such account"))
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

func run(ctx context.Context, databaseURL string, brokers []string, topic string, listener net.Listener) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := prepare(ctx, db); err != nil {
		return err
	}
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
	consume, err := consumer.New(handler, brokers, []string{topic}, consumer.Config{Observer: figures.Consumer()})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return in.Run(ctx) })
	g.Go(func() error { return consume.Run(ctx) })
	g.Go(func() error { return figures.Run(ctx, in, consume) })
	g.Go(func() error { return serve(ctx, listener, shop{db, keys, topic}, registry) })
	return g.Wait()
}

func serve(ctx context.Context, listener net.Listener, s shop, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		res, err := s.pay(w, r)
		httpedge.Write(w, res, err) // the first answer, or its replay
	})
	mux.HandleFunc("PUT /accounts/{name}", s.open)
	mux.HandleFunc("GET /accounts/{name}", s.balance)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
