package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/outbox"
)

// payment is a row as the API shows it. A replay shows the row again, so it must hold nothing that changes later.
type payment struct {
	PaymentID string    `json:"payment_id"`
	AccountID string    `json:"account_id"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	CreatedAt time.Time `json:"created_at"`
}

// same tells whether a payment is what this command asks for.
func (p payment) same(c command) bool {
	return p.AccountID == c.AccountID && p.Amount == c.Amount && p.Currency == c.Currency
}

// request is a command with who asks and under which key; an empty key is none.
type request struct {
	tenant, key string
	command     command
}

var (
	// errReused: the key belongs to another command.
	errReused = errors.New("the key was used with a different request")
	// errUnknown: COMMIT was sent and nobody knows what became of it.
	errUnknown  = errors.New("the outcome of the payment is unknown")
	errNotFound = errors.New("no such payment")
)

type store struct {
	db                  *pgxpool.Pool
	append              outbox.Appender
	topic               string
	insert, byKey, byID string
}

func newStore(db *pgxpool.Pool, schema string) (*store, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	return &store{
		db: db, insert: pgschema.Expand(queryInsert, prefix), byKey: pgschema.Expand(queryByKey, prefix),
		byID: pgschema.Expand(queryByID, prefix),
	}, nil
}

// create makes the payment and its event, or finds the one that this key made before (replayed).
func (s *store) create(ctx context.Context, r request) (p payment, replayed bool, err error) {
	// Its time is in the id: new rows land side by side in the index.
	id := event.NewID()
	said := contract.PaymentCreated{PaymentID: id, AccountID: r.command.AccountID, Amount: r.command.Amount, Currency: r.command.Currency}
	e, err := event.JSON(s.topic, r.command.AccountID, contract.TypePaymentCreated, said)
	if err != nil {
		return payment{}, false, err
	}
	e.Tenant = r.tenant
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return payment{}, false, fmt.Errorf("beginning the transaction: %w", err)
	}
	defer rollback(ctx, tx)
	p = payment{PaymentID: id.String(), AccountID: said.AccountID, Amount: said.Amount, Currency: said.Currency}
	err = tx.QueryRow(ctx, s.insert, p.PaymentID, r.tenant, r.key, p.AccountID, p.Amount, p.Currency, e.ID.String()).Scan(&p.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.replay(ctx, tx, r)
	}
	if err != nil {
		return payment{}, false, fmt.Errorf("inserting the payment: %w", err)
	}
	e.Time, p.CreatedAt = p.CreatedAt, p.CreatedAt.UTC()
	if err := s.append.Append(ctx, tx, e); err != nil {
		return payment{}, false, err
	}
	if err := tx.Commit(ctx); err != nil {
		if pgerr.CommitUnknown(err) {
			err = errors.Join(errUnknown, err)
		}
		return p, false, fmt.Errorf("committing the payment: %w", err)
	}
	return p, false, nil
}

// rollback does nothing after Commit. The request's end must not leave a connection in its transaction, hence a time of its own.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// replay reads what the key made. It is there: the insert waited until the other transaction had committed.
func (s *store) replay(ctx context.Context, tx pgx.Tx, r request) (payment, bool, error) {
	p, err := find(ctx, tx, s.byKey, r.tenant, r.key)
	switch {
	case errors.Is(err, errNotFound):
		return payment{}, false, errors.New("the payment of this key was deleted meanwhile")
	case err != nil:
		return payment{}, false, fmt.Errorf("finding what the key made: %w", err)
	case !p.same(r.command):
		return payment{}, false, errReused
	}
	return p, true, nil
}

func (s *store) get(ctx context.Context, tenant string, id uuid.UUID) (payment, error) {
	return find(ctx, s.db, s.byID, tenant, id.String())
}

func find(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, query string, args ...any,
) (p payment, err error) {
	err = db.QueryRow(ctx, query, args...).Scan(&p.PaymentID, &p.AccountID, &p.Amount, &p.Currency, &p.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, errNotFound
	}
	// Postgres gives times in the process's zone: two processes must show the same bytes.
	p.CreatedAt = p.CreatedAt.UTC()
	return p, err
}
