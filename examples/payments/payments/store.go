package payments

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
)

// Statuses of a payment. One without a card is accepted at once.
const (
	statusPending  = "pending"
	statusAccepted = "accepted"
)

// payment is the API's representation of a row.
type payment struct {
	PaymentID string    `json:"payment_id"`
	AccountID string    `json:"account_id"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	CreatedAt time.Time `json:"created_at"`
	Status    string    `json:"status"`
}

// ids are recorded in the first phase, so that every attempt uses the same.
type ids struct {
	Payment uuid.UUID `json:"payment"`
	Event   uuid.UUID `json:"event"`
}

func newIDs() ids { return ids{Payment: event.NewID(), Event: event.NewID()} }

var errNotFound = errors.New("no such payment")

type store struct {
	db     *pgxpool.Pool
	append outbox.Appender
	topic  string

	insert, accept, decline, confirm, byID string
}

func newStore(db *pgxpool.Pool, schema string) *store {
	return &store{
		db: db, insert: worker.In(schema, queryInsert), accept: worker.In(schema, queryAccept),
		decline: worker.In(schema, queryDecline), confirm: worker.In(schema, queryConfirm),
		byID: worker.In(schema, queryByID),
	}
}

// create makes the payment and its event in tx, and returns the answer.
func (s *store) create(ctx context.Context, tx pgx.Tx, tenant string, c command) (idempotency.Result, error) {
	id := newIDs()
	at, err := s.insertRow(ctx, tx, tenant, id, c, statusAccepted)
	if err != nil {
		return idempotency.Result{}, err
	}
	if err := s.appendEvent(ctx, tx, tenant, id, c, at); err != nil {
		return idempotency.Result{}, err
	}
	return answer(id, c, at)
}

func (s *store) insertRow(ctx context.Context, tx pgx.Tx, tenant string, id ids, c command, status string) (
	at time.Time, err error,
) {
	err = tx.QueryRow(ctx, s.insert, id.Payment.String(), tenant, c.AccountID, c.Amount, c.Currency, id.Event.String(),
		status).Scan(&at)
	if err != nil {
		return at, fmt.Errorf("inserting the payment: %w", err)
	}
	return at, nil
}

func (s *store) appendEvent(ctx context.Context, tx pgx.Tx, tenant string, id ids, c command, at time.Time) error {
	payload := contract.PaymentCreated{
		PaymentID: id.Payment, AccountID: c.AccountID, Amount: c.Amount,
		Currency: c.Currency,
	}
	e, err := event.NewJSON(event.Event{Topic: s.topic, Key: c.AccountID, Type: contract.TypePaymentCreated}, payload)
	if err != nil {
		return err
	}
	e.ID, e.Tenant, e.Time = id.Event, tenant, at
	return s.append.Append(ctx, tx, e)
}

// answer returns the result for the caller and for replays.
func answer(id ids, c command, at time.Time) (idempotency.Result, error) {
	p := payment{
		PaymentID: id.Payment.String(), AccountID: c.AccountID, Amount: c.Amount, Currency: c.Currency,
		CreatedAt: at.UTC(), Status: statusAccepted,
	}
	res, err := httpedge.JSON(http.StatusCreated, p)
	if err != nil {
		return res, err
	}
	res.Header["Location"] = []string{"/payments/" + p.PaymentID}
	res.Resource, res.Schema = p.PaymentID, 1
	return res, nil
}

func (s *store) get(ctx context.Context, tenant string, id uuid.UUID) (p payment, err error) {
	err = s.db.QueryRow(ctx, s.byID, tenant, id.String()).Scan(&p.PaymentID, &p.AccountID, &p.Amount, &p.Currency,
		&p.CreatedAt, &p.Status)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, errNotFound
	}
	// pgx returns the process's time zone; the answer must not depend on it.
	p.CreatedAt = p.CreatedAt.UTC()
	return p, err
}

// inTx runs the transaction of a phase.
func (s *store) inTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.db, do)
}

// retryable marks an error of a read as retryable if the database is away or asks for a retry.
func retryable(err error) error {
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered {
		passing := []string{"08", "40", "53", "57"} // the connection, a conflict, resources, a shutdown
		if !slices.ContainsFunc(passing, func(class string) bool { return strings.HasPrefix(pg.Code, class) }) {
			return err
		}
	}
	return outcome.Retryable(err)
}
