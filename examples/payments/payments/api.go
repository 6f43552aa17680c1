package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
)

const (
	maxBody = 64 << 10
	// requestTimeout bounds a request, including its wait for another one with the same key.
	requestTimeout = 10 * time.Second
)

// Headers, and the code for a reused key.
const (
	HeaderKey      = httpedge.HeaderKey
	HeaderTenant   = "X-Tenant"
	HeaderReplayed = httpedge.HeaderReplayed
	CodeReused     = string(httpedge.CodeKeyReused)
)

// Operations: the scope of a key is a tenant and an operation. Never rename one.
const (
	opCreate = "payment.create"
	opNotice = "card.notice"
)

type api struct {
	store *store
	keys  *pgstore.Store
	guard *guard.Guard
	cards *cards // nil: payments need no card
	edge  httpedge.Edge
	wake  func()
}

// commands makes requests from commands. Recovery reads the kept input.
var commands = idempotency.Fingerprinter{Version: 1, KeepInput: true}

func (a *api) create(w http.ResponseWriter, r *http.Request) {
	req, cmd, err := a.request(w, r)
	if err != nil {
		a.edge.Write(w, idempotency.Result{}, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	res, err := a.execute(ctx, req, cmd)
	if err == nil && !res.Replayed && res.Failure == "" {
		a.wake()
	}
	a.edge.Write(w, res, err)
}

// request authenticates and validates, before the key is recorded.
func (a *api) request(w http.ResponseWriter, r *http.Request) (req idempotency.Request, cmd command, err error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return req, cmd, err
	}
	key, err := httpedge.Key(r)
	if err != nil {
		return req, cmd, err
	}
	if err := httpedge.Decode(w, r, maxBody, &cmd); err != nil {
		return req, cmd, err
	}
	if err := cmd.check(); err != nil {
		return req, cmd, &httpedge.Problem{Status: http.StatusBadRequest, Code: "INVALID_PAYMENT", Detail: err.Error()}
	}
	req, err = commands.Request(idempotency.Key{Tenant: tenant, Operation: opCreate, Value: key}, cmd)
	return req, cmd, err
}

// execute makes the payment once: without a card provider in one transaction of key, row and event, with one in phases.
func (a *api) execute(ctx context.Context, req idempotency.Request, cmd command) (idempotency.Result, error) {
	if a.cards == nil {
		return a.keys.InTx(ctx, req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			return a.store.create(ctx, tx, req.Key.Tenant, cmd)
		})
	}
	return a.guard.Run(ctx, req, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		return a.cards.pay(ctx, op, req.Key.Tenant, cmd)
	})
}

// notice handles the card provider's notices, which arrive at least once. The key is the provider's id of the notice. A
// real service checks its signature here, before the key is recorded.
func (a *api) notice(w http.ResponseWriter, r *http.Request) {
	var n struct {
		ID     string `json:"id"`
		Charge struct {
			Key string `json:"key"`
		} `json:"charge"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&n); err != nil {
		a.edge.Problem(w, httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "the notice is not valid JSON"})
		return
	}
	id, err := uuid.Parse(strings.TrimPrefix(n.Charge.Key, chargePrefix))
	if err != nil {
		a.edge.Problem(w, httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "the notice names no payment"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	req, err := idempotency.NewRequest(idempotency.Key{Operation: opNotice, Value: n.ID}, n)
	var res idempotency.Result
	if err == nil {
		res, err = a.keys.InTx(ctx, req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
			_, err := tx.Exec(ctx, a.store.confirm, id.String())
			return idempotency.Result{Code: http.StatusNoContent}, err
		})
	}
	a.edge.Write(w, res, err)
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	tenant, err := tenantOf(r)
	if err != nil {
		a.edge.Write(w, idempotency.Result{}, err)
		return
	}
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		a.notFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	p, err := a.store.get(ctx, tenant, id)
	if errors.Is(err, errNotFound) {
		a.notFound(w, r)
		return
	}
	var res idempotency.Result
	if err == nil {
		res, err = httpedge.JSON(http.StatusOK, p)
		res.Header["Cache-Control"] = []string{"no-store"}
	}
	a.edge.Write(w, res, retryable(err))
}

// tenantOf returns the tenant of a request. In a real service it comes from authentication.
func tenantOf(r *http.Request) (string, error) {
	values := r.Header.Values(HeaderTenant)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || (idempotency.Key{Tenant: values[0], Operation: opCreate, Value: "any"}).Check() != nil {
		return "", &httpedge.Problem{
			Status: http.StatusBadRequest, Code: "INVALID_TENANT",
			Detail: fmt.Sprintf("%s: want one header of at most %d printable ASCII characters", HeaderTenant,
				idempotency.MaxKey),
		}
	}
	return values[0], nil
}

func (a *api) notFound(w http.ResponseWriter, _ *http.Request) {
	a.edge.Problem(w, httpedge.Problem{
		Status: http.StatusNotFound, Code: "NOT_FOUND",
		Detail: "not found; POST /payments makes a payment",
	})
}

func (a *api) notAllowed(allow string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allow)
		a.edge.Problem(w, httpedge.Problem{
			Status: http.StatusMethodNotAllowed, Code: "METHOD_NOT_ALLOWED",
			Detail: "want " + allow,
		})
	}
}
