// Package payments accepts payments over HTTP. A payment is a row in payment and a PaymentCreated event in the outbox, in
// one transaction; the relay does the rest.
//
// POST /payments takes {"account_id", "amount", "currency"} and answers 201 with the payment. With a header
// Idempotency-Key, scoped by X-Tenant, a retry gets the same status and body and Idempotent-Replayed: true, and makes
// neither a second row nor a second event; the same key with another command is refused with 422. Keys are kept as long as
// the payment. What is malformed records nothing. An answer of 503 leaves the outcome open: repeat the request with its key.
// GET /payments/{id} answers with the payment. Errors are problem+json (RFC 9457) with a stable code.
package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// Source is the ce_source of the events.
const Source = "payments"

// Config sets the server. DatabaseURL and one of Listen and Listener are required.
type Config struct {
	// DatabaseURL is where payments and outbox are: both are written in one transaction.
	DatabaseURL secret.Value
	// Password takes the place of the one in DatabaseURL, when it is set. Both are read anew for each connection from a file.
	Password secret.Value
	// Plaintext accepts sslmode=disable to another machine. Default: refused.
	Plaintext bool
	// Schema holds the tables, and is made if need be. Empty: the connection's search_path.
	Schema string
	// Listen is the address of the API.
	Listen string
	// Listener takes the place of Listen: for tests and the demo, which want any free port. Run closes it.
	Listener net.Listener
	// Topic of the events. Default "payments".
	Topic string
	// SkipMigrate leaves the tables to somebody else; without them Run fails and says so.
	SkipMigrate bool
	// Wake is called after each commit of a payment: Relay.Wake, when a relay runs in this process. It must not block.
	Wake func()
	// Logger takes what a person should know. Default slog.Default(). Bodies and keys are never in it.
	Logger *slog.Logger
}

// Tables are what the server keeps.
func Tables() worker.Tables {
	return worker.Tables{Sets: []migrations.Set{migrations.Outbox}, DDL: []string{ddlPayment}, Probe: queryProbe}
}

// Run serves until ctx ends, lets requests that are under way finish, and returns nil.
func Run(ctx context.Context, cfg Config) error {
	listener := cfg.Listener
	if listener == nil {
		var err error
		if listener, err = service.Listen(cfg.Listen); err != nil {
			return err
		}
		if listener == nil {
			return service.Usage("--listen: the API needs an address, such as 127.0.0.1:8080")
		}
	}
	defer listener.Close()
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	db, err := worker.Open(ctx, service.Database{URL: cfg.DatabaseURL, Password: cfg.Password, AllowPlain: cfg.Plaintext}, cfg.Schema, Tables(), cfg.SkipMigrate, cfg.Logger)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("payments: %w", err)
	}
	defer db.Close()
	h, err := Handler(db, cfg)
	if err != nil {
		return err
	}
	return service.ServeOn(ctx, listener, h)
}

// Handler is the API without a server, over a database that has the tables. Of cfg it uses Schema, Topic, Wake and Logger.
func Handler(db *pgxpool.Pool, cfg Config) (http.Handler, error) {
	s, err := newStore(db, cfg.Schema)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, errors.New("payments: Handler needs a *pgxpool.Pool")
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	wake := cfg.Wake
	if wake == nil {
		wake = func() {}
	}
	s.topic = cmp.Or(cfg.Topic, contract.Topic)
	s.append = outbox.Appender{Source: Source, Schema: cfg.Schema}
	api := &api{store: s, wake: wake, log: log}
	health := service.Health{Ready: func(ctx context.Context) error { return db.Ping(ctx) }}.Handler()
	mux := http.NewServeMux()
	mux.Handle("/healthz", health)
	mux.Handle("/healthz/", health)
	mux.Handle("/readyz", health)
	mux.HandleFunc("POST /payments", api.create)
	mux.HandleFunc("GET /payments/{id}", api.get)
	mux.HandleFunc("/payments", notAllowed(http.MethodPost))
	mux.HandleFunc("/payments/{id}", notAllowed(http.MethodGet))
	mux.HandleFunc("/", notFound)
	return mux, nil
}
