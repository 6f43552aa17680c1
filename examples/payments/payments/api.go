package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
)

const (
	maxBody   = 64 << 10
	maxKey    = 255
	maxTenant = 200
	// patience bounds a request, above all its wait for another one with the same key.
	patience = 10 * time.Second
)

// The headers and the code that clients build on.
const (
	HeaderKey      = "Idempotency-Key"
	HeaderTenant   = "X-Tenant"
	HeaderReplayed = "Idempotent-Replayed"
	CodeReused     = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
)

type api struct {
	store *store
	wake  func()
	log   *slog.Logger
}

func (a *api) create(w http.ResponseWriter, r *http.Request) {
	tenant, problem := tenantOf(r)
	if problem != nil {
		problem.write(w)
		return
	}
	key, problem := keyOf(r)
	if problem != nil {
		problem.write(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		(&problemDetails{Status: http.StatusRequestEntityTooLarge, Code: "BODY_TOO_LARGE", Detail: fmt.Sprintf("at most %d bytes are read", maxBody)}).write(w)
		return
	}
	if err != nil {
		bad("BODY_UNREADABLE", "the body ended too early").write(w)
		return
	}
	c, err := parse(body)
	if err != nil {
		bad("INVALID_PAYMENT", err.Error()).write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	p, replayed, err := a.store.create(ctx, request{tenant: tenant, key: key, command: c})
	if err != nil {
		a.failed(w, r, err, p.PaymentID)
		return
	}
	if replayed {
		w.Header().Set(HeaderReplayed, "true")
	} else {
		a.wake()
	}
	w.Header().Set("Location", "/payments/"+p.PaymentID)
	write(w, http.StatusCreated, "application/json", p)
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	tenant, problem := tenantOf(r)
	if problem != nil {
		problem.write(w)
		return
	}
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		notFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	p, err := a.store.get(ctx, tenant, id)
	if err != nil {
		a.failed(w, r, err, "")
		return
	}
	write(w, http.StatusOK, "application/json", p)
}

// failed answers for an error of the store. id is the payment of which nobody knows whether it was made, if any.
func (a *api) failed(w http.ResponseWriter, r *http.Request, err error, id string) {
	p := &problemDetails{Status: http.StatusInternalServerError, Code: "INTERNAL", Detail: "the payment was not made"}
	switch {
	case errors.Is(err, errNotFound):
		notFound(w, r)
		return
	case errors.Is(err, errReused):
		a.log.Warn("an idempotency key was used again with a different request")
		p = &problemDetails{
			Status: http.StatusUnprocessableEntity, Code: CodeReused,
			Detail: "this Idempotency-Key belongs to a different payment: use a new key for a new payment",
		}
		p.write(w)
		return
	case errors.Is(err, errUnknown):
		p = &problemDetails{
			Status: http.StatusServiceUnavailable, Code: "OUTCOME_UNKNOWN", PaymentID: id,
			Detail: "nobody knows whether the payment was made: repeat the request with the same Idempotency-Key, or without one look for the payment first",
		}
	case pgerr.Away(err), pgerr.Retry(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		p = &problemDetails{Status: http.StatusServiceUnavailable, Code: "TRY_AGAIN", Detail: "the payment was not made: try again"}
	}
	a.log.Error("a request failed", "method", r.Method, "code", p.Code, "error", err)
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	p.write(w)
}

// keyOf returns the idempotency key, byte for byte as it was sent; empty when there is none.
func keyOf(r *http.Request) (string, *problemDetails) {
	values := r.Header.Values(HeaderKey)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || values[0] == "" || len(values[0]) > maxKey || !printable(values[0]) {
		return "", bad("INVALID_IDEMPOTENCY_KEY", fmt.Sprintf("%s must be there once, with 1 to %d printable ASCII characters", HeaderKey, maxKey))
	}
	return values[0], nil
}

// tenantOf returns whom the payment belongs to. An example has no authentication; elsewhere the tenant comes from there.
func tenantOf(r *http.Request) (string, *problemDetails) {
	values := r.Header.Values(HeaderTenant)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || len(values[0]) > maxTenant || !event.Storable(values[0]) {
		return "", bad("INVALID_TENANT", fmt.Sprintf("%s must be there once, with at most %d bytes of text", HeaderTenant, maxTenant))
	}
	return values[0], nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// problemDetails is an error as RFC 9457 has it, with a code for machines.
type problemDetails struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// PaymentID is set with OUTCOME_UNKNOWN.
	PaymentID string `json:"payment_id,omitempty"`
}

func (p *problemDetails) write(w http.ResponseWriter) {
	p.Type, p.Title = "about:blank", http.StatusText(p.Status)
	write(w, p.Status, "application/problem+json", p)
}

func bad(code, detail string) *problemDetails {
	return &problemDetails{Status: http.StatusBadRequest, Code: code, Detail: detail}
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	(&problemDetails{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is nothing here; payments are made by POST /payments"}).write(w)
}

func notAllowed(allow string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allow)
		(&problemDetails{Status: http.StatusMethodNotAllowed, Code: "METHOD_NOT_ALLOWED", Detail: "want " + allow}).write(w)
	}
}

func write(w http.ResponseWriter, status int, contentType string, v any) {
	// Neither of the two types has anything that JSON lacks.
	body, _ := json.Marshal(v)
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
