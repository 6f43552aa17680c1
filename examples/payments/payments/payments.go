// Package payments accepts payments over HTTP. A payment is a row in payment and a PaymentCreated event in the outbox,
// which the relay publishes.
//
// POST /payments takes {"account_id", "amount", "currency"} and answers 201 with the payment. It requires the header
// Idempotency-Key, whose scope is X-Tenant. A retry gets the same status and body and Idempotent-Replayed: true, and
// makes neither a second row nor a second event. The same key with another command gets 422. A malformed request
// records nothing. The header Idempotency-Policy says how long a key is remembered. GET /payments/{id} answers with the
// payment. Errors are problem+json (RFC 9457) with a stable code.
//
// Without a card provider a payment is one transaction of key, row and event. With one it is made in phases, and
// recovery resolves the payments of processes that died: see card.go. POST /notices receives the provider's notices.
package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/telemetry"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/process"
)

// Source is the ce_source of the events.
const Source = "payments"

// Config configures the server. One of Listen and Listener is required.
type Config struct {
	// Schema holds the tables; Run creates it if missing. Empty: the connection's search_path.
	Schema string
	// Listen is the address of the API.
	Listen string
	// Listener replaces Listen, for tests and the demo. Run closes it.
	Listener net.Listener
	// Topic of the events. Default "payments".
	Topic string
	// Cards charges a card for each payment. Default: payments need no card.
	Cards Provider
	// Guard configures the guard of payments with a card, and its Keep the retention of all keys. Default: a lease of
	// 30 s; recovery waits for 2 min, the longest time for which the provider works at a request.
	Guard guard.Config
	// Recovery configures their recovery. Default: a poll every second, and 2 min of grace.
	Recovery recovery.Config
	// SkipMigrate does not create the tables; Run fails if they are missing.
	SkipMigrate bool
	// Wake is called after each commit of a payment: Relay.Wake, if a relay runs in this process. It must not block.
	Wake func()
	// Telemetry has metrics of keys, guard and recovery, which Metrics shows at /metrics. Optional: both are those of
	// examples/payments/figures.
	Telemetry *telemetry.Telemetry
	Metrics   http.Handler
	// Logger is for operators. Default slog.Default(). Bodies and keys are never logged.
	Logger *slog.Logger
}

// Tables returns the server's tables.
func Tables() worker.Tables {
	return worker.Tables{
		Sets: []migrations.Set{migrations.Outbox, migrations.Idempotency},
		DDL:  []string{ddlPayment, ddlCard}, Probe: queryProbe,
	}
}

// Run serves until ctx ends, finishes the requests in flight, and returns nil. If the database is away at the start,
// Run waits for it. Until the tables exist, /healthz answers 200, /readyz 503, and a request 503 with Retry-After.
// Run does not close db.
func Run(ctx context.Context, db *pgxpool.Pool, cfg Config) error {
	listener := cfg.Listener
	if listener == nil {
		var err error
		if listener, err = process.Listen(cfg.Listen); err != nil {
			return err
		}
		if listener == nil {
			return errors.New("payments: the API needs an address, such as 127.0.0.1:8080")
		}
	}
	defer listener.Close() // for returns before health.Run, which closes it too
	s, err := New(db, cfg)
	if err != nil {
		return err
	}
	health := process.Health{
		Prepare: Tables().Prepare(db, cfg.Schema, cfg.SkipMigrate), Ready: db.Ping, Metrics: cfg.Metrics,
		Logger: cfg.Logger,
	}
	if err := health.Run(ctx, listener, s, s.Recovery.Run); err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	return nil
}

// Service is the API without a server, and its recovery.
type Service struct {
	http.Handler
	// Recovery resolves abandoned payments and deletes expired keys. The caller runs it.
	Recovery *recovery.Worker
}

// New makes a service over a database that has or will have the tables. It ignores Listen and Listener of cfg.
func New(db *pgxpool.Pool, cfg Config) (*Service, error) {
	if db == nil {
		return nil, errors.New("payments: New needs a *pgxpool.Pool")
	}
	s := newStore(db, cfg.Schema)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Wake == nil {
		cfg.Wake = func() {}
	}
	s.topic = cmp.Or(cfg.Topic, contract.Topic)
	s.append = outbox.Appender{Source: Source, Schema: cfg.Schema}
	a := &api{store: s, wake: cfg.Wake, edge: httpedge.Edge{
		Policy: httpedge.Policy(cfg.Guard.Keep),
		Logger: cfg.Logger,
	}}
	if cfg.Telemetry != nil {
		cfg.Guard.Observer, cfg.Recovery.Observer = cfg.Telemetry.Guard(), cfg.Telemetry.Recovery()
	}
	var err error
	if a.keys, err = pgstore.New(db, pgstore.Config{
		Schema: cfg.Schema, Keep: cfg.Guard.Keep, Logger: cfg.Logger, Observer: cfg.Guard.Observer,
	}); err != nil {
		return nil, err
	}
	if cfg.Telemetry != nil {
		if _, err := cfg.Telemetry.Watch(a.keys); err != nil {
			return nil, err
		}
	}
	cfg.Guard.Logger, cfg.Recovery.Logger = cfg.Logger, cfg.Logger
	cfg.Guard.Wait = cmp.Or(cfg.Guard.Wait, time.Second)
	cfg.Guard.RecoverAfter = cmp.Or(cfg.Guard.RecoverAfter, settled)
	cfg.Recovery.Grace = cmp.Or(cfg.Recovery.Grace, settled)
	if a.guard, err = guard.New(a.keys, cfg.Guard); err != nil {
		return nil, err
	}
	handlers := map[string]recovery.Handler{}
	if cfg.Cards != nil {
		a.cards = &cards{store: s, provider: cfg.Cards}
		handlers[opCreate] = a.cards.handler()
	}
	// Other services may have keys in this table.
	cfg.Recovery.SkipUnhandled = true
	w, err := recovery.New(a.keys, handlers, cfg.Recovery)
	if err != nil {
		return nil, err
	}
	return &Service{Handler: a.routes(), Recovery: w}, nil
}

// Handler makes a Service without running its recovery, which payments without a card do not need.
func Handler(db *pgxpool.Pool, cfg Config) (http.Handler, error) { return New(db, cfg) }

func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", a.create)
	mux.HandleFunc("GET /payments/{id}", a.get)
	mux.HandleFunc("POST /notices", a.notice)
	mux.HandleFunc("/payments", a.notAllowed(http.MethodPost))
	mux.HandleFunc("/payments/{id}", a.notAllowed(http.MethodGet))
	mux.HandleFunc("/", a.notFound)
	return mux
}
